"""What the conformance suite needs of a lock service: its real server, and ways to harm it."""

from typing import Protocol

from fencepost.server.locks.source import Source, SourceContext, make


class Bench(Protocol):
    """One service, running. A file `<name>_bench.py` for each, and a line in conftest.py."""

    name: str
    url: str
    dsn: str
    """The gateway's PostgreSQL, for sources that need one; empty otherwise."""

    async def crash(self) -> None:
        """SIGKILL the service, all of its nodes."""
        ...

    async def restart(self) -> None:
        """Start it again on the same data, and return once it answers."""
        ...

    async def pause(self) -> None:
        """SIGSTOP it: connections stay, answers do not come."""
        ...

    async def resume(self) -> None:
        """SIGCONT it, and return once it answers."""
        ...

    async def spoil(self, lock: str) -> None:
        """Put something of another program's where the lock's state would be."""
        ...

    async def waiting(self, lock: str) -> int:
        """Count who waits for the lock, looking into the service. Only asked where the source is fair."""
        ...


async def opened(bench: Bench) -> Source:
    """Open a source on the bench's service; the caller closes it."""
    source = make(bench.url, SourceContext(bench.name, bench.dsn))
    await source.open()
    return source
