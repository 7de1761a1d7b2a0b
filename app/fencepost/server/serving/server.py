"""Running the gateway under uvicorn, in this process or in several, until Ctrl-C, SIGTERM or a failure.

Ctrl-C and SIGTERM drain: no new connections, requests in flight finish. A second Ctrl-C cuts them off. Both
return normally, so that the caller can stop PostgreSQL afterwards.
"""

import contextlib
import logging
import math
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Final

import uvicorn
from uvicorn.supervisors.multiprocess import SIGNALS

from fencepost.server.serving.guarded import GuardedProtocol
from fencepost.server.serving.supervisor import DATABASE_LOST, Supervisor
from fencepost.server.settings import Settings

_OTHER_FILES: Final = 256
"""Open files beside connections: those of the admin port, sources, queues, logs, the event loop's own."""


class ServerFailedError(Exception):
    """The gateway ended, or never began, without being asked to. The message is one line."""


def run_gateway(
    settings: Settings,
    listeners: Sequence[socket.socket],
    *,
    on_ready: Callable[[], None],
    database_runs: Callable[[], bool],
) -> None:
    """Serve on the listeners until asked to stop: the main one, and that of the admin port.

    `on_ready` is called once requests are answered. Raises ServerFailedError when a process cannot
    start, or `database_runs` turns false. The processes read their settings from FENCEPOST_* variables, which
    the caller has set.
    """
    _allow_open_files(settings)
    config = _config(settings)
    if settings.workers == 1:
        server = _Server(config, on_ready=on_ready, database_runs=database_runs)
        try:
            server.run(list(listeners))
        except SystemExit as ended:  # uvicorn exits when the lifespan failed, after logging why
            raise ServerFailedError("the gateway did not start") from ended
        failure = server.failure
    else:
        with _metrics_directory(), _signals_restored():
            supervisor = Supervisor(config, listeners, on_ready=on_ready, database_runs=database_runs)
            supervisor.run()
        failure = supervisor.failure
    if failure is not None:
        raise ServerFailedError(failure)


def _allow_open_files(settings: Settings) -> None:
    """Let this process, and those that it begins, have as many open files as there may be connections. A limit that
    an operator has set (the hard one) stays, and is named.
    """
    wanted = settings.max_connections + _OTHER_FILES + sum(settings.pool_sizes)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        logging.getLogger("fencepost").warning(
            "%d connections need up to %d open files, and %d are allowed (ulimit -Hn): lower --max-connections",
            *(settings.max_connections, wanted, hard),
        )


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        "fencepost.server.serving.worker:create_app",
        factory=True,
        loop="uvloop",
        http=GuardedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # A client's address is that of its connection: a header may say anything.
        proxy_headers=False,
        workers=settings.workers,
        timeout_keep_alive=math.ceil(settings.keep_alive),
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout),
        # Importing the application counts: a worker that still does so must not be taken for hung.
        timeout_worker_healthcheck=60,
    )


class _Server(uvicorn.Server):
    """A server in this process. `failure`: why it ended, after `run`; None when it was asked to end."""

    def __init__(
        self, config: uvicorn.Config, *, on_ready: Callable[[], None], database_runs: Callable[[], bool]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._database_runs = database_runs
        self.failure: str | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.started:
            raise KeyboardInterrupt  # the start may wait for PostgreSQL, and there is nothing to drain
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if not self._database_runs():
            self.failure = DATABASE_LOST
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
