"""A mutant of the token source: a change in its functions, after which a scenario must fail."""

from dataclasses import dataclass

import pytest
from tests.scenarios.leases import LeaseScenario
from tests.support.interleave import Connect
from tests.support.lease_racing import LeaseRace, open_lease_race

ACQUIRE = "fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer, text[])"
EXTEND = "fencepost.extend(bigint, bytea, integer, integer)"
RELEASE = "fencepost.release(bigint, bytea, uuid)"
LEAVE = "fencepost.leave(uuid, integer)"
BEAT = "fencepost.beat(uuid, uuid[], uuid[])"
RETIRE = "fencepost.retire(uuid)"
WAKE = "fencepost.wake(text[], uuid)"
SWEEP = "fencepost.sweep()"
FORGET = "fencepost.forget(double precision, bigint)"
LEASE = "fencepost.lease(bigint)"
WAITERS = "fencepost.live_waiters"

ONE = "drawn := ARRAY[nextval('fencepost.tokens')];"
MANY = "drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));"
SUPERSEDED = "SET ended_at = clock_timestamp(), secret_hash = NULL\n      WHERE x.lease_id = ANY (before)"


@dataclass(frozen=True)
class Mutant:
    """In each of these functions (or the view) `old` becomes `new`."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    scenario: LeaseScenario


def mutant(name: str, function: str, old: str, new: str, scenario: LeaseScenario) -> Mutant:
    return Mutant(name, ((function, old, new),), scenario)


async def assert_seen(mutant: Mutant, connect: Connect) -> None:
    """Run its scenario in a fresh database where the functions are changed; it must end in an AssertionError."""
    race = await open_lease_race(connect)
    for function, old, new in mutant.changes:
        await change(race, function, old, new)
    with pytest.raises(AssertionError):
        await mutant.scenario(race)


async def change(race: LeaseRace, name: str, old: str, new: str) -> None:
    """Change a function or the view; a mutant that changes nothing would prove nothing."""
    if name == WAITERS:
        query = await race.observer.fetchval("SELECT pg_get_viewdef($1::text::regclass)", name)
        definition = f"CREATE OR REPLACE VIEW {name} AS {query}"
    else:
        definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", name)
    assert old in definition, f"{name} has no {old!r}: {definition}"
    await race.observer.execute(definition.replace(old, new))
