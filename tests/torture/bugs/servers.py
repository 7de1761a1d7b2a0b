"""Bugs that need a crash or a failover to show (R4, R19)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from tests.torture.bugs.settings import CRASHES, FAILOVERS
from tests.torture.planted import Planted, swap

from fencepost.storage.connections import session
from fencepost.storage.connections.origin import Origin
from fencepost.torture.stages import primary


def _commits_do_not_wait_for_the_disk() -> None:
    for settings in (session.DURABLE, session.PINNED):
        assert isinstance(settings, dict)
        settings["synchronous_commit"] = "off"


def _any_database_will_do() -> None:
    swap(Origin, "problem", lambda *_: None)


@contextmanager
def _no_generation_is_raised() -> Iterator[None]:
    async def nothing(_connection: Any) -> None:
        pass

    with mock.patch.object(primary, "_raise", nothing):
        yield


BUGS: Final = [
    Planted("commits do not wait for the disk", "register", CRASHES, gateway=_commits_do_not_wait_for_the_disk),
    Planted(
        "no generation is raised after a failover that has lost grants",
        "mutex",
        FAILOVERS,
        gateway=_any_database_will_do,
        harness=_no_generation_is_raised,
    ),
]
