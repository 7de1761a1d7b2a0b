"""Running the gateway under uvicorn, in this process or in several, until Ctrl-C, SIGTERM or a failure.

Ctrl-C and SIGTERM drain: no new connections, requests in flight finish. A second Ctrl-C cuts them off. Both
return normally, so that the caller can stop PostgreSQL afterwards.
"""

import contextlib
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import SIGNALS, Process

from fencepost.settings import Settings

_JOIN_INTERVAL = 0.1  # seconds between two looks for a second Ctrl-C
_RESTART_PAUSE = 2.0  # seconds between two tries to start a process that could not start


class ServerFailedError(Exception):
    """The gateway ended, or never began, without being asked to. The message is one line."""


def run_gateway(
    settings: Settings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    database_runs: Callable[[], bool],
) -> None:
    """Serve on `listener` until asked to stop.

    `on_ready` is called once requests are answered. Raises ServerFailedError when a process cannot
    start, or `database_runs` turns false. The processes read their settings from FENCEPOST_* variables, which
    the caller has set.
    """
    config = uvicorn.Config(
        "fencepost.cli.worker:create_app",
        factory=True,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        workers=settings.workers,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout),
        # Importing the application counts: a worker that still does so must not be taken for hung.
        timeout_worker_healthcheck=60,
    )
    if settings.workers == 1:
        server = _Server(config, on_ready=on_ready, database_runs=database_runs)
        try:
            server.run([listener])
        except SystemExit as ended:  # uvicorn's way of saying that the lifespan failed, after logging why
            raise ServerFailedError("the gateway did not start") from ended
        lost = server.database_lost
    else:
        with _metrics_directory(), _signals_restored():
            supervisor = _Supervisor(config, listener, on_ready=on_ready, database_runs=database_runs)
            supervisor.run()
        if not supervisor.announced and any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise ServerFailedError("the gateway did not start")
        lost = supervisor.database_lost
    if lost:
        raise ServerFailedError("the embedded PostgreSQL ended by itself; its log, postgresql.log, says why")


class _Server(uvicorn.Server):
    """A server in this process."""

    def __init__(
        self, config: uvicorn.Config, *, on_ready: Callable[[], None], database_runs: Callable[[], bool]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._database_runs = database_runs
        self.database_lost = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if not self._database_runs():
            self.database_lost = True
            return True
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals as uvicorn does, but do not raise them again at the end: PostgreSQL still runs."""
        stops = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self.handle_exit) for number in stops}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _Supervisor(Multiprocess):
    """Servers in processes of their own, restarted when they die. They share one listening socket."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        *,
        on_ready: Callable[[], None],
        database_runs: Callable[[], bool],
    ) -> None:
        super().__init__(config, [listener])
        self._on_ready = on_ready
        self._database_runs = database_runs
        self.announced = False
        self._next_restart = 0.0
        self.database_lost = False

    def keep_subprocess_alive(self) -> None:
        """Do what uvicorn does twice a second, and look after the database and the greeting too."""
        for process in self.processes:
            process.child_conn.close()  # the child's end: with it open, a dead child would not be noticed at once
        if self.announced:
            self._replace_dead()
        else:
            super().keep_subprocess_alive()
        if self.should_exit.is_set():
            return
        if not self._database_runs():
            self.database_lost = True
            self.should_exit.set()
        elif not self.announced and all(process.is_ready(1) for process in self.processes):
            self.announced = True
            self._on_ready()

    def _replace_dead(self) -> None:
        """Start processes again that died, and now and then those that could not start.

        uvicorn would end everything when one cannot start. But the others serve, or will once the database is back;
        only the first start of all tells a broken configuration.
        """
        for number, process in enumerate(self.processes):
            if self.should_exit.is_set() or process.is_alive(self.config.timeout_worker_healthcheck):
                continue
            process.kill()
            process.join()
            if process.exitcode == STARTUP_FAILURE:
                if time.monotonic() < self._next_restart:
                    continue
                self._next_restart = time.monotonic() + _RESTART_PAUSE
            self.processes[number] = Process(self.config, self.sockets)
            self.processes[number].start()

    def terminate_all(self) -> None:
        """Ask the processes to drain, and stop listening too: a connection that nobody takes would hang."""
        super().terminate_all()
        for listener in self.sockets:
            listener.close()

    def join_all(self) -> None:
        """Wait for the processes to drain; a second Ctrl-C kills them."""
        self.signal_queue.clear()
        for process in self.processes:
            while process.process.is_alive():
                process.process.join(_JOIN_INTERVAL)
                if signal.SIGINT in self.signal_queue:
                    process.process.kill()


@contextlib.contextmanager
def _metrics_directory() -> Iterator[None]:
    """Give the processes a fresh directory in which prometheus_client adds up their metrics."""
    with tempfile.TemporaryDirectory(prefix="fencepost-metrics-") as directory:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        yield


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Take back the signals that uvicorn's supervisor takes and keeps: it would swallow a later Ctrl-C."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
