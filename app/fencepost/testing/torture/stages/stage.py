"""What a run plays on: gateways, their database, a lock service. Ours, or those that run already."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fencepost.testing.faults.link import Link
from fencepost.testing.servers.server import Server
from fencepost.testing.torture.faults import Need


class Primary(Protocol):
    """The PostgreSQL of a run, if the run has started it."""

    def restart(self, *, crash: bool) -> None:
        """Restart it: crashed, or by a fast shutdown."""
        ...

    def fail_over(self) -> tuple[str, int]:
        """Kill it and promote its standby; returns where the new one is. It is the standby's primary from then on."""
        ...

    def oldest(self, source: str) -> int:
        """Give the oldest token of a source that is not void."""
        ...


@dataclass(slots=True)
class StageGateway:
    """A gateway that this run has started. Clients reach it by `front`, and it reaches PostgreSQL by `back`."""

    name: str
    server: Server
    front: Link
    back: Link


@dataclass(slots=True)
class Stage:
    """urls: of the gateways, as clients reach them. source: what these call the token source. database_url: None where
    the run may not connect.
    """

    urls: tuple[str, ...]
    source: str
    database_url: str | None
    directory: Path
    gateways: list[StageGateway] = field(default_factory=list)
    primary: Primary | None = None
    lock_service: list[Server] = field(default_factory=list)
    to_database: Link | None = None
    """By which `database_url` leads to the primary, if the run has started it."""
    has: frozenset[Need] = frozenset({"holders"})
    faults: tuple[str, ...] = ()
    """The kinds of faults that this run is to have."""
