"""What the conformance suite of the logs needs: the log's real server, and ways to harm it and the log."""

import importlib
from typing import Protocol

from fencepost.server.queues.log import Log


class QueueBench(Protocol):
    """The server of one kind of log, running. A file `<name>_bench.py` for each, with `running(directory)`, a context
    manager that gives the bench, and `log_of(url)`, which makes the log that a URL of this bench names, not opened yet:
    members in processes of their own call it.
    """

    name: str
    handed_over_within_s: float
    """How long the partitions of a member that died stay without another, at most."""

    async def new_log(self, partitions: int) -> str:
        """Make an empty log of its own for a test, and return its URL."""
        ...

    async def make_again(self, url: str) -> None:
        """Delete this log, and make it again under the same name with as many partitions."""
        ...

    async def crash(self) -> None:
        """SIGKILL the server, all of its nodes."""
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


def log_of(bench: str, url: str) -> Log:
    """Make the log that a URL of the bench of this name stands for, not opened yet."""
    made: Log = importlib.import_module(f"tests.conformance.queues.{bench}_bench").log_of(url)
    return made
