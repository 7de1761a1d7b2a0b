"""Bugs that need a crash or a failover to show (R4, R19)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from tests.torture.bugs.settings import CRASHES, FAILOVERS, GENERATIONS
from tests.torture.planted import Planted, swap

from fencepost.server.postgres import connection as session
from fencepost.server.postgres.database_identity import Origin
from fencepost.testing.torture import stages


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

    with mock.patch.object(stages, "_raise", nothing):
        yield


@contextmanager
def _floors_are_raised_too_far() -> Iterator[None]:
    """Let a new generation's first tokens be below the floor of the table whose refusals as stale show no mark."""
    raise_generation = stages._raise  # noqa: SLF001 - the operator's part of a failover

    async def too_far(connection: Any) -> None:
        await raise_generation(connection)
        await connection.execute("UPDATE fencepost.floors SET floor = floor + 10000 WHERE name LIKE '%epoch'")

    with mock.patch.object(stages, "_raise", too_far):
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
    Planted(
        "after a failover the first tokens of the new generation are refused, too",
        "register",
        GENERATIONS,
        harness=_floors_are_raised_too_far,
    ),
]
