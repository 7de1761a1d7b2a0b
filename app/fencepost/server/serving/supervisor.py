"""Gateway processes under one parent, which starts them again when they die and hands them their connections."""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from fencepost.server.serving.dispatch import Dispatcher
from fencepost.server.serving.worker_server import WorkerServer

DATABASE_LOST = "the embedded PostgreSQL ended by itself; see its log, postgresql.log"

_JOIN_INTERVAL = 0.1  # seconds between two looks for a second Ctrl-C
_RESTART_PAUSE = 2.0  # seconds between two tries to start a process that could not start


class Worker(Process):
    """A process with a server in it. What it is given for its listening socket is its channel."""

    _server: WorkerServer | None

    @property
    def server(self) -> WorkerServer:
        """The server: made in the process itself, when it is first asked for."""
        if self._server is None:
            self._server = WorkerServer(self.config)
        return self._server


class Supervisor(Multiprocess):
    """Servers in processes of their own, restarted when they die.

    `failure`: why it ended, after `run`; None when it was asked to end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listeners: Sequence[socket.socket],
        *,
        on_ready: Callable[[], None],
        database_runs: Callable[[], bool],
    ) -> None:
        super().__init__(config, [])
        self._dispatcher = Dispatcher(*listeners)
        self._on_ready = on_ready
        self._database_runs = database_runs
        self._announced = False
        self._next_restart = 0.0
        self.failure: str | None = None

    def init_processes(self) -> None:
        """Start to accept, and start the workers."""
        self._dispatcher.start()
        self.processes.extend(self._started() for _ in range(self.processes_num))

    def _started(self) -> Process:
        with self._dispatcher.add() as channel:  # the worker gets a copy; with ours open its end would go unnoticed
            worker = Worker(self.config, [channel])
            worker.start()
        worker.child_conn.close()  # the same
        return worker

    def keep_subprocess_alive(self) -> None:
        """Twice a second: look after the workers, the database, and the greeting."""
        self._replace_dead()
        if self.should_exit.is_set():
            return
        if not self._database_runs():
            self._fail(DATABASE_LOST)
        elif not self._dispatcher.is_alive():
            self._fail("connections are not accepted any more; see the log")
        elif not self._announced and self._dispatcher.serving == len(self.processes):
            self._announced = True
            self._on_ready()

    def _fail(self, why: str) -> None:
        self.failure = why
        self.should_exit.set()

    def _replace_dead(self) -> None:
        """Start processes again that died, and now and then those that could not start.

        Only the very first start shows a broken configuration. Later the others serve, or will once the database
        is back.
        """
        for number, process in enumerate(self.processes):
            if self.should_exit.is_set() or process.is_alive(self.config.timeout_worker_healthcheck):
                continue
            process.kill()
            process.join()
            if process.exitcode == STARTUP_FAILURE:
                if not self._announced:
                    self._fail("the gateway did not start")
                    return
                if time.monotonic() < self._next_restart:
                    continue
                self._next_restart = time.monotonic() + _RESTART_PAUSE
            self.processes[number] = self._started()

    def handle_hup(self) -> None:
        """Have every worker load the tables anew, as a single one does on this signal."""
        for process in self.processes:
            if self._announced and process.pid is not None and process.process.is_alive():
                os.kill(process.pid, signal.SIGHUP)

    def handle_ttin(self) -> None:
        """Add a worker, as uvicorn does on this signal."""
        self.processes.append(self._started())

    def terminate_all(self) -> None:
        """Stop listening, then ask the workers to drain."""
        self._dispatcher.stop()
        super().terminate_all()

    def join_all(self) -> None:
        """Wait for the processes to drain; a second Ctrl-C kills them."""
        self.signal_queue.clear()
        for process in self.processes:
            while process.process.is_alive():
                process.process.join(_JOIN_INTERVAL)
                if signal.SIGINT in self.signal_queue:
                    process.process.kill()
