"""A lease belongs to the caller that acquired it, and callers see and take only locks that their patterns name."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.integration.test_lease_claims import ask, asking, lease
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import open_race
from tests.support.use_cases import open_gateway

from fencepost.server.election import Election
from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import LEASE_LOST, LOCK_FORBIDDEN
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import (
    Granted,
    elections,
    inspect,
    locks,
    mint,
    observe,
    release,
    renew,
    watch_election,
)
from fencepost.server.postgres.leases import LeaseId, LeaseRow
from fencepost.testing.servers.processes import PATIENCE

SECRET = "0123456789abcdef0123456789abcdef"
ANN, BOB = Caller("jwt:issuer|ann"), Caller("jwt:issuer|bob")
ORDERS = Caller("key:orders", locks=("orders/*",))


@pytest.fixture
async def gateway(connect: Connect, unmade: Unmade) -> AsyncIterator[Gateway]:
    race = await open_race(connect, unmade)
    async with open_gateway(race.dsn) as gateway:
        yield gateway


def code(answer: object) -> str | None:
    return answer.name if isinstance(answer, Problem) else None


VERBS: dict[str, Callable[[Gateway, LeaseId], Awaitable[object]]] = {
    "renew": lambda gateway, lease_id: renew(gateway, lease_id, SECRET, None),
    "mint": lambda gateway, lease_id: mint(gateway, lease_id, SECRET, 1),
    "release": lambda gateway, lease_id: release(gateway, lease_id, SECRET),
}


async def test_the_secret_of_a_lease_is_of_no_use_to_another_caller(gateway: Gateway) -> None:
    granted = await lease(gateway.of(ANN), asking("job", secret=SECRET))
    for verb, use in VERBS.items():
        assert code(await use(gateway.of(BOB), granted.lease_id)) == LEASE_LOST.code, verb
        assert code(await use(gateway, granted.lease_id)) == LEASE_LOST.code, "no caller is another caller, too"
        assert isinstance(await inspect(gateway.of(ANN), granted.lease_id), LeaseRow), "it lives"
        assert code(await use(gateway.of(ANN), granted.lease_id)) is None, verb


async def test_an_acquire_is_repeated_only_by_its_own_caller(gateway: Gateway) -> None:
    granted = await lease(gateway.of(ANN), asking("job", secret=SECRET))
    assert (await lease(gateway.of(ANN), asking("job", secret=SECRET))).lease_id == granted.lease_id
    assert code(await ask(gateway.of(BOB), asking("job", secret=SECRET))) == "FP011", "it is held"


async def test_a_name_that_ends_where_a_secret_begins_is_another_caller(gateway: Gateway) -> None:
    """The hash is of both texts: moving the border between them makes another one."""
    granted = await lease(gateway.of(Caller("ab")), asking("job", secret="c" + SECRET))
    assert code(await renew(gateway.of(Caller("abc")), granted.lease_id, SECRET, None)) == LEASE_LOST.code


async def test_locks_are_taken_by_pattern(gateway: Gateway) -> None:
    mine = gateway.of(ORDERS)
    assert isinstance(await ask(mine, asking("orders/1", secret=SECRET)), Granted)
    refused = await ask(mine, asking("orders/2", "payments/1", secret=SECRET[::-1]))
    assert isinstance(refused, Problem)
    assert (refused.type, refused.extra["lock"]) == (LOCK_FORBIDDEN, "payments/1")
    seen = await locks(gateway, "builtin", None, None, 10)
    assert isinstance(seen, list)
    assert [state.name for state in seen] == ["orders/1"], "nothing was taken of what is refused in part"


async def test_locks_are_seen_by_pattern(gateway: Gateway) -> None:
    other = await lease(gateway, asking("payments/1", secret=SECRET))
    await lease(gateway, asking("orders/1", secret=SECRET[::-1]))
    mine = gateway.of(ORDERS)
    seen = await locks(mine, "builtin", None, None, 10)
    assert isinstance(seen, list)
    assert [state.name for state in seen] == ["orders/1"]
    assert code(await locks(mine, "builtin", "payments/1", None, 1)) == LOCK_FORBIDDEN.code
    assert code(await inspect(mine, other.lease_id)) == LEASE_LOST.code
    hidden, unknown = await inspect(mine, other.lease_id), await inspect(mine, LeaseId("builtin", 10**9))
    assert isinstance(hidden, Problem)
    assert isinstance(unknown, Problem)
    assert hidden.detail.replace(str(other.lease_id), "N") == unknown.detail.replace(str(10**9), "N")


async def test_a_lost_lease_does_not_name_a_successor_that_the_caller_may_not_see(gateway: Gateway) -> None:
    both = gateway.of(Caller("key:jobs", locks=("job",)))
    first = await lease(both, asking("job", secret=SECRET))
    assert await release(both, first.lease_id, SECRET) is None
    await lease(gateway, asking("job", "payments/1", secret=SECRET[::-1]))
    lost = await inspect(both, first.lease_id)
    assert isinstance(lost, Problem)
    assert "superseded_by" not in lost.extra
    assert "payments" not in lost.detail
    full = await inspect(gateway, first.lease_id)
    assert isinstance(full, Problem)
    assert "payments" in full.detail, "others see it"


async def test_patterns_that_a_caller_has_no_more_count_for_its_leases_too(gateway: Gateway) -> None:
    granted = await lease(gateway.of(Caller("key:a", locks=("job", "orders/*"))), asking("job", secret=SECRET))
    narrowed, all_again = gateway.of(Caller("key:a", locks=("orders/*",))), gateway.of(Caller("key:a", locks=("job",)))
    for verb in ("renew", "mint"):
        assert code(await VERBS[verb](narrowed, granted.lease_id)) == LEASE_LOST.code, verb
        assert code(await VERBS[verb](all_again, granted.lease_id)) is None, verb
    assert code(await VERBS["release"](narrowed, granted.lease_id)) is None


async def test_elections_are_seen_by_pattern(gateway: Gateway) -> None:
    for name in ("eu", "us"):
        await lease(gateway, asking(f"election/{name}", secret=SECRET + name))
    mine = gateway.of(Caller("key:eu", locks=("election/eu",)))
    assert isinstance(await observe(mine, "builtin", "eu"), Election)
    assert code(await observe(mine, "builtin", "us")) == LOCK_FORBIDDEN.code
    listed = await elections(mine, "builtin", "", 10)
    assert isinstance(listed, list)
    assert [election.name for election in listed] == ["eu"]
    async with watch_election(mine, "builtin", "us", "ann") as watched:
        assert code(watched) == LOCK_FORBIDDEN.code


async def test_a_wait_for_a_lock_ends_with_the_callers_token(gateway: Gateway) -> None:
    await lease(gateway, asking("job", secret=SECRET))
    ends = asyncio.get_running_loop().time() + 0.3
    waiting = ask(gateway.of(Caller("jwt:issuer|ann", ends=ends)), asking("job", secret=SECRET[::-1], wait_ms=60_000))
    async with asyncio.timeout(PATIENCE):
        assert code(await waiting) == "FP011"
