"""PUT to a row of a scope that a policy keeps the gateway from changing: a refusal that stays, and not a 503."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.scenarios.idempotency import once
from tests.scenarios.scopes import mark, scoped_race
from tests.support.interleave import Connect
from tests.support.racing import Race, keyed, open_gateway

from fencepost.cli.migrate import GRANTS
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.use_cases import put


@pytest.fixture
async def race(connect: Connect, database: str) -> Race:
    return await scoped_race(connect, database, "strict")


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    """Give a gateway whose role does not see item 1, may not change item 2, and stores no item whose n is 9."""
    await race.observer.execute("CREATE ROLE sees_more LOGIN PASSWORD 'x'")
    try:
        await race.observer.execute(
            "GRANT SELECT, UPDATE, INSERT ON items TO sees_more; ALTER TABLE items ENABLE ROW LEVEL SECURITY;"
            " CREATE POLICY sees ON items FOR SELECT USING (id <> 1);"
            " CREATE POLICY writes ON items FOR UPDATE USING (id <> 2);"
            " CREATE POLICY makes ON items FOR INSERT WITH CHECK (n <> 9)"
        )
        for grant in GRANTS:
            await race.observer.execute(grant.format(role="sees_more"))
        account = race.dsn.partition("://")[2].partition("@")[0]
        async with open_gateway(race.dsn.replace(account, "sees_more:x")) as opened:
            yield opened
    finally:
        await race.observer.execute("DROP OWNED BY sees_more; DROP ROLE sees_more")


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize(
    ("item", "n", "status", "code"),
    [(1, 5, 403, "42501"), (2, 5, 404, "FP006"), (2, 9, 403, "42501")],
)
async def test_a_put_that_a_policy_refuses_is_answered_for_good(
    race: Race, gateway: Gateway, item: int, n: int, status: int, code: str, *, with_key: bool
) -> None:
    request = keyed(str(item), 40, table="items", account_id=42, n=n)
    answer = await put(gateway, replace(request, once=once() if with_key else None))
    assert isinstance(answer, Problem)
    assert (answer.type.status, answer.name, answer.type.retryable) == (status, code, False)
    assert await mark(race) is None, "nothing was raised"
