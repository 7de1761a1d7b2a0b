"""Running the gateway under uvicorn, in this process or in several, until Ctrl-C, SIGTERM or a failure.

Ctrl-C and SIGTERM drain: no new connections, requests in flight finish. A second Ctrl-C cuts them off. Both
return normally, so that the caller can stop PostgreSQL afterwards.
"""

import contextlib
import errno
import ipaddress
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

from fencepost.server.serving.protocol import GuardedProtocol
from fencepost.server.serving.supervisor import DATABASE_LOST, Supervisor
from fencepost.server.settings import Settings

# The listening socket: bound before anything else is started, so that a busy port costs nothing.

_BACKLOG = 2048


class ListenError(Exception):
    """The gateway cannot listen there. The message is one line: what is wrong, and what to do."""


def listen(host: str, port: int, *, allow_remote: bool, prefix: str = "") -> socket.socket:
    """Bind a TCP socket and listen on it. `port` 0 takes a free one. Raises ListenError, which names the options by
    `prefix`: `admin-` for those of the admin port.

    An address that other machines can reach needs `allow_remote`, and that needs authentication (parts.py).
    """
    family, address = _resolve(host, port, prefix)
    if not allow_remote and not _is_loopback(address[0]):
        raise ListenError(
            f"{host} can be reached from other machines: listen on 127.0.0.1, or give --allow-remote"
            " (FENCEPOST_ALLOW_REMOTE=true), with authentication"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may bind one port with SO_REUSEADDR as long as neither listens: this is the real test.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(error, host, port, prefix)) from error
    return listener


def base_url(listener: socket.socket) -> str:
    """Return the URL at which a browser on this machine finds the gateway."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _options(name: str, prefix: str) -> tuple[str, str]:
    return f"--{prefix}{name}", f"FENCEPOST_{prefix}{name}".upper().replace("-", "_")


def _resolve(host: str, port: int, prefix: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        named = ", ".join(_options("host", prefix))
        raise ListenError(f"the address {host!r} ({named}) is not known: {error}") from error
    # A name such as localhost has several; IPv4 first, as the clients of a local service expect.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _explain(error: OSError, host: str, port: int, prefix: str) -> str:
    another = f"choose another with {' or '.join(_options('port', prefix))}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use by another process; {another}"
        case errno.EACCES:
            return f"port {port} on {host} needs privileges that this user does not have; {another}"
        case errno.EADDRNOTAVAIL:
            named = " or ".join(_options("host", prefix))
            return f"{host} is no address of this machine; choose another with {named}"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror}"


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
