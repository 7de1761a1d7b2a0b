"""What a race is about: a table or the token source, under which rule, and whose tokens it takes."""

import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from tests.direct_sql import test_partitions as partitions
from tests.support.interleave import Connect
from tests.support.lease_gateways import let_gateways_be_silent
from tests.support.lease_racing import LeaseRace, open_lease_race
from tests.support.postgres import Unmade
from tests.support.racing import Race, audited_race, open_race, operators, scoped_race

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import queues, sources
from fencepost.server.postgres.queues import is_queue

ISSUED = 1000
"""How far another source than the built-in one is: as far as that."""


@dataclass(frozen=True)
class Opening:
    """`opened` gives what the test takes as `race`: a `Race`, a `LeaseRace`, or what connects to an empty database."""

    name: str
    opened: Callable[[Connect, Unmade], Awaitable[Any]]
    marks: tuple[pytest.MarkDecorator, ...] = ()
    around: Callable[[Race], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    """What is there as long as the test runs."""


def opened(*openings: Opening) -> pytest.MarkDecorator:
    """Run a test once with each of these; as `pytestmark`, each test of the file that does not say another one."""
    return pytest.mark.opened(*openings)


def openings_of(test: Callable[..., object]) -> list[Opening]:
    """Return what a test is opened with, by itself or with all of its file."""
    function = test.func if isinstance(test, partial) else test
    marks = [*getattr(function, "pytestmark", ())]
    found = getattr(sys.modules[function.__module__], "pytestmark", None)
    marks += [] if found is None else [found.mark]
    for mark in marks:
        if mark.name == "opened":
            return list(mark.args)
    return [CONNECTIONS if "connect" in inspect.signature(function).parameters else STRICT]


def on_table(rule: Rule = "strict", source: str = "external") -> Opening:
    """The table `orders`."""
    return Opening(f"{rule}-{source}", lambda connect, unmade: open_race(connect, unmade, rule, source=source))


def on_scopes(rule: Rule = "strict", source: str = "external") -> Opening:
    """The tables `items` and `notes`, which share the scopes account/…."""
    return Opening(f"scopes-{rule}-{source}", lambda connect, unmade: scoped_race(connect, unmade, rule, source))


def on_audited_table(rule: Rule) -> Opening:
    """The table `orders` with the order k, and a count of all writes that land."""
    return Opening(f"audited-{rule}", lambda connect, unmade: audited_race(connect, unmade, rule))


def on_service(name: str, rule: Rule) -> Opening:
    """The table `orders`, which takes the tokens of a lock service or of a queue: that has issued ISSUED."""

    async def opened(connect: Connect, unmade: Unmade) -> object:
        operator = await connect()
        if is_queue(name):
            await queues.register(operator, name)
        else:
            await sources.register(operator, name, "redis", "source", verifies=True)
        await operator.close()
        race = await open_race(connect, unmade.url, rule, source=name)
        await sources.record_verified(race.observer, name, ISSUED)
        return race

    return Opening(f"{rule}-{name}", opened)


async def _of_leases(connect: Connect, _: Unmade) -> LeaseRace:
    return await open_lease_race(connect)


async def _of_a_queue(connect: Connect, _: Unmade) -> LeaseRace:
    race = await open_lease_race(connect)
    await let_gateways_be_silent(race.observer)
    return race


async def _connections(connect: Connect, _: Unmade) -> Connect:
    return connect


STRICT, EPOCH, BUILTIN = on_table(), on_table("epoch"), on_table(source="builtin")
STRICT_ON_BOTH_SERVERS = replace(STRICT, marks=(pytest.mark.versions,))
LEASES = Opening("leases", _of_leases)
"""The token source."""
QUEUE_OF_LOCKS = Opening("queue", _of_a_queue)
"""The token source, where gateways that are silent for less than half an hour count as alive."""
CONNECTIONS = Opening("connections", _connections)
"""An empty database, to which the test connects."""


async def _partitioned(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    await race.observer.execute(partitions.TABLE)
    await protect(race.observer, "parts")
    return race


async def _behind_glass(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    return race


PARTITIONED = Opening("partitioned", _partitioned)
"""The table `parts` of direct_sql/test_partitions.py."""
BEHIND_GLASS = Opening("glass", _behind_glass, around=lambda race: operators(race.observer))
"""The table `orders` with the order k, and logins that may break the glass and may not."""
