"""Servers that were killed are started again, also when one of them needs another that is still dead.

`with killed(postgres), killed(gateway):` ends with the gateway, which cannot start without its PostgreSQL. Its start
fails, and is then left to the block of PostgreSQL, which does it when PostgreSQL serves. Only when no block is open any
more, so that no server is to come back, a start that fails is an error.
"""

import threading
from contextlib import ExitStack
from typing import Final, Protocol, runtime_checkable

from fencepost.server.ops.embedded.server import EmbeddedServerError
from fencepost.testing.servers.server import ServerError


@runtime_checkable
class Restartable(Protocol):
    """A server of the harness: `killed` starts it again."""

    @property
    def pid(self) -> int:
        """The pid of the process that runs."""
        ...

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended since."""
        ...

    def crash(self) -> None:
        """SIGKILL it."""
        ...

    def start(self) -> None:
        """Start it again on its data."""
        ...

    def wait(self) -> None:
        """Return once it serves."""
        ...


class Restart:
    """What one block of `killed` does at its end. It counts as open from when it is made."""

    def __init__(self, server: Restartable) -> None:
        self._servers = [server]
        with _lock:
            _open.append(self)

    def do(self) -> None:
        """Start the server, and then those that other blocks have left to this one.

        Raises ServerError or EmbeddedServerError when no open block is left that could do it later.
        """
        with ExitStack() as rest:
            rest.callback(self._start_what_was_left)
            self._start(self._servers[0])

    def _start_what_was_left(self) -> None:
        with _lock:
            _open.remove(self)
        with ExitStack() as all_of_them:
            for server in self._servers[:0:-1]:
                all_of_them.callback(self._start, server)

    def _start(self, server: Restartable) -> None:
        try:
            if not server.running:
                server.start()
            server.wait()
        except (ServerError, EmbeddedServerError):
            with _lock:
                others = [each for each in _open if each is not self]
                if not others:
                    raise
                others[-1]._servers.append(server)  # noqa: SLF001 - another one of this class


_lock: Final = threading.Lock()
_open: Final[list[Restart]] = []
