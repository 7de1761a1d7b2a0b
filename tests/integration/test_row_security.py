"""PUT and PATCH of a row that a policy keeps the gateway from changing: a refusal that stays, and not a 503.

The row is seen and not written: 404. Where the policy of INSERT refuses the new row too, that is the answer.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.asking import RULED, ruled
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, scoped_race
from tests.support.use_cases import keyed, listed, once, open_gateway, patch, put

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.ops.protect import protect


@pytest.fixture(params=["rows", "scope"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """Give items that have their marks themselves, or share that of their account."""
    race = await scoped_race(connect, unmade, "strict")
    if request.param == "rows":
        await protect(race.observer, "items", scope="")
    return race


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    """Give a gateway whose role does not see item 1, may not change item 2, and stores no item whose n is 9."""
    policies = (
        f"GRANT SELECT, UPDATE, INSERT ON items TO {RULED}; ALTER TABLE items ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY sees ON items FOR SELECT USING (id <> 1);"
        " CREATE POLICY writes ON items FOR UPDATE USING (id <> 2);"
        " CREATE POLICY makes ON items FOR INSERT WITH CHECK (n <> 9)"
    )
    async with ruled(race.observer, race.dsn, policies) as url, open_gateway(url) as opened:
        yield opened


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize(
    ("item", "n", "status", "code"),
    [(1, 5, 403, "42501"), (2, 5, 404, "FP006"), (2, 9, 403, "42501")],
)
async def test_a_put_that_a_policy_refuses_is_answered_for_good(
    race: Race, gateway: Gateway, item: int, n: int, status: int, code: str, *, with_key: bool
) -> None:
    request = keyed(str(item), 40, table="items", account_id=42, n=n)
    answer = await put(gateway, replace(request, idempotency_key=once() if with_key else None))
    assert isinstance(answer, Problem)
    assert (answer.type.status, answer.name, answer.type.retryable) == (status, code, False)
    raised = "SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 40"
    assert await race.observer.fetchval(raised) == 0


@pytest.mark.parametrize("array", [False, True])
async def test_a_patch_that_a_policy_refuses_finds_no_row(race: Race, gateway: Gateway, *, array: bool) -> None:
    one, row = keyed("2", 40, table="items", n=5), {"id": 2, "n": 5}
    answer = await patch(gateway, listed(40, row, table="items") if array else one)
    assert isinstance(answer, Problem)
    assert answer.name == "FP006", answer.detail
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 40") == 0
