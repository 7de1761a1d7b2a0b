"""A role never outlives its request on a connection, whatever is cancelled or broken."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

import asyncpg
import pytest
from tests.integration.test_lease_claims import ask, asking
from tests.support.asking import LOGIN, WEB, Acting
from tests.support.lost_answers import IN_A_HURRY
from tests.support.racing import ITEMS, Race
from tests.support.use_cases import delete, keyed, listed, matching, once, patch, post, put, result_of

from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.atomic import atomically
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import Granted
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import claim, explain, read_one
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import database
from fencepost.server.postgres.connection import GatewayConnection
from fencepost.server.postgres.query import Condition, Field
from fencepost.server.times import QueueTimes, Times

Moment = Literal["before", "in flight", "after"]
STATEMENTS = ("execute", "fetch", "fetchval", "fetchrow", "fetchmany")
OF_K = (Condition(Field("order_id"), "eq", "k"),)


async def several(gateway: Gateway) -> None:
    for key in ("k", "j"):
        await patch(gateway, keyed(key, 40, n=1))
    await claim(gateway, Claim(parse_resource("account/42"), Token(40)))


WAYS: dict[str, Callable[[Gateway], Awaitable[object]]] = {
    "batched": lambda gateway: patch(gateway, keyed("k", 40, n=1)),
    "keyed": lambda gateway: patch(gateway, replace(keyed("k", 40, n=1), idempotency_key=once())),
    "put": lambda gateway: put(gateway, keyed("new", 40, n=1)),
    "alone": lambda gateway: post(gateway, listed(40, {"order_id": "a"}, {"order_id": "b"})),
    "refused": lambda gateway: patch(gateway, keyed("k", 20, n=1)),
    "read": lambda gateway: read_one(gateway, ReadOne("orders", ("k",))),
    "explain": lambda gateway: explain(gateway, parse_resource("orders/k")),
    "lease": lambda gateway: ask(gateway, asking("l", secret="s" * 32, claims=("orders/k",))),
    "array": lambda gateway: patch(gateway, listed(40, {"order_id": "k", "n": 1}, {"order_id": "j", "n": 1})),
    "PATCH by filter": lambda gateway: patch(gateway, matching(OF_K, 40, n=1)),
    "DELETE by filter": lambda gateway: delete(gateway, matching(OF_K, 40)),
    "scope": lambda gateway: claim(gateway, Claim(parse_resource("account/42"), Token(40))),
    "atomic": lambda gateway: atomically(gateway, several),
}


class Interrupter:
    """Cancels the request when the n-th statement is run on a session that acts as a caller, or is about to. A batch,
    which is a task of its own, goes on then.
    """

    request: asyncio.Future[object]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.moment, self.seen = -1, "before", 0
        for name in STATEMENTS:
            real = getattr(asyncpg.Connection, name)
            monkeypatch.setattr(GatewayConnection, name, self._interrupting(real))

    def _interrupting(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(connection: GatewayConnection, *args: Any, **options: Any) -> Any:
            if not connection.acting:
                return await real(connection, *args, **options)
            mine = self.seen == self.at
            self.seen += 1
            if mine and self.moment == "before":
                self.request.cancel()
            if mine and self.moment == "in flight":
                asyncio.get_running_loop().call_soon(self.request.cancel)
            answer = await real(connection, *args, **options)
            if mine and self.moment == "after":
                self.request.cancel()
            return answer

        return run


async def every_cancelled_request_gives_its_role_back(
    stage: Acting, monkeypatch: pytest.MonkeyPatch, way: str, moment: Moment
) -> None:
    interrupter, at, reached = Interrupter(monkeypatch), 0, True
    interrupter.moment = moment
    while reached:
        interrupter.at, interrupter.seen = at, 0
        interrupter.request = asyncio.ensure_future(WAYS[way](stage.of(WEB, claims='{"sub": "ann"}')))
        await asyncio.wait([interrupter.request])
        reached = interrupter.seen > at
        interrupter.at = -1
        await stage.assert_own_name()
        at += 1
    assert at >= 3, "a role was taken, and something done with it"


@pytest.mark.parametrize("way", WAYS)
async def test_a_role_ends_with_its_request_whichever_statement_is_cancelled(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for key in ("k", "j"):
        await race.insert(race.a, key, 30)
    await race.observer.execute(f"{ITEMS}; GRANT SELECT, UPDATE ON items TO {WEB}")
    await protect(race.observer, "items", scope="account/{account_id}")
    await stage.gateway.catalog.reload()
    moments: tuple[Moment, ...] = ("before", "in flight", "after")
    for moment in moments:
        await every_cancelled_request_gives_its_role_back(stage, monkeypatch, way, moment)


async def test_a_connection_that_cannot_give_its_role_back_is_closed_and_the_answer_stays(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    await race.insert(race.a, "k", 30)
    real = database.give_back
    ended = []
    one_by_one = asyncio.Lock()  # a lane gives its role back a moment later, beside the next request

    async def broken(connection: GatewayConnection, within: float = 5) -> str | None:
        ended.append(connection.backend.pid)
        async with one_by_one:
            await race.observer.execute("SELECT pg_terminate_backend($1, 5000)", connection.backend.pid)
        return await real(connection, within)

    monkeypatch.setattr(database, "give_back", broken)
    for way in ("batched", "alone", "read"):
        answer = await WAYS[way](stage.of(WEB))
        assert result_of(answer) in ("ok", "created"), answer  # type: ignore[arg-type]
        await stage.assert_own_name()
    assert len(set(ended)) == 3


async def test_a_connection_whose_backend_ended_right_after_an_answer_changes_none(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library may still wait for the end of that answer, and has an error of its own for it."""
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetchrow

    async def unfinished(connection: GatewayConnection, query: str, *args: Any, **options: Any) -> Any:
        if query == database._GIVE_BACK:  # noqa: SLF001 - it is the one statement that meets this
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return await real(connection, query, *args, **options)

    monkeypatch.setattr(GatewayConnection, "fetchrow", unfinished)
    for way in ("batched", "alone", "read"):
        answer = await WAYS[way](stage.of(WEB))
        assert result_of(answer) in ("ok", "created"), answer  # type: ignore[arg-type]
        await stage.assert_own_name()


@pytest.mark.parametrize("token", [40, 20])
async def test_a_trigger_that_takes_a_role_for_the_session_leaves_none_behind(
    stage: Acting, race: Race, token: int
) -> None:
    await race.insert(race.a, "k", 30)
    await race.observer.execute("""
        CREATE FUNCTION strange() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          PERFORM set_config('role', 'fp_other', false), set_config('request.jwt.claims', 'theirs', false);
          RETURN NEW; END $$;
        CREATE TRIGGER strange BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION strange()""")
    await stage.gateway.catalog.reload()
    for way in ("batched", "keyed", "lease"):
        await WAYS[way](stage.of(WEB))
        await stage.assert_own_name()
    assert result_of(await patch(stage.of(WEB), keyed("k", token, n=1))) in ("ok", "FP001", "FP002")
    await stage.assert_own_name()


@pytest.mark.parametrize("token", [40, 30])
async def test_a_batch_whose_connection_breaks_leaves_no_role_behind(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    """Its backend is ended as the gateway, and the mark asked for as the caller."""
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetchmany
    broken: list[int] = []

    async def break_once(connection: GatewayConnection, *args: Any, **options: Any) -> Any:
        if not broken:
            broken.append(connection.backend.pid)
            connection.terminate()
        return await real(connection, *args, **options)

    monkeypatch.setattr(GatewayConnection, "fetchmany", break_once)
    answer = await patch(stage.of(WEB), keyed("k", token, n=7))
    assert broken
    assert result_of(answer) == ("ok" if token == 40 else "FP009")
    await stage.assert_own_name()


async def test_a_role_that_may_not_be_taken_any_more_is_no_answer_to_a_write_that_may_have_landed(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    await race.insert(race.a, "k", 30)
    real = asyncpg.Connection.fetchmany

    async def cut(connection: GatewayConnection, *args: Any, **options: Any) -> Any:
        await real(connection, *args, **options)
        await race.observer.execute(f"REVOKE {WEB} FROM {LOGIN}")
        connection.terminate()
        raise asyncpg.InterfaceError("cut off")

    monkeypatch.setattr(GatewayConnection, "fetchmany", cut)
    answer = await patch(replace(stage.of(WEB), times=IN_A_HURRY), keyed("k", 40, n=7))
    assert await race.live_mark("k") == 40, "it landed"
    assert result_of(answer) == "FP009"


async def test_no_grant_keeps_the_callers_role_for_the_gateways_own_statements(stage: Acting, race: Race) -> None:
    stage.gateway.locks.queue.times = Times(queue=QueueTimes(late_share=-1))  # begin_now follows the claims
    await race.insert(race.a, "k", 30)
    await race.observer.execute("SELECT fencepost.issue_beyond(100)")
    answer = await WAYS["lease"](stage.of(WEB))
    assert isinstance(answer, Granted), answer
    await stage.assert_own_name()


# Mutants


async def test_without_giving_back_the_pool_would_lend_none_of_them(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines hold the rule: without the first one, the pool closes the connection."""

    async def nothing(_connection: object, _within: float = 5) -> None:
        return None

    await race.insert(race.a, "k", 30)
    monkeypatch.setattr(database, "give_back", nothing)
    await WAYS["read"](stage.of(WEB))
    await stage.assert_own_name()


async def test_without_both_lines_a_role_would_be_lent_to_the_next(
    stage: Acting, race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pretend(connection: GatewayConnection, _within: float = 5) -> None:
        connection.acting = False

    await race.insert(race.a, "k", 30)
    monkeypatch.setattr(database, "give_back", pretend)
    await WAYS["read"](stage.of(WEB))
    with pytest.raises(AssertionError):
        await stage.assert_own_name()
    for pool in (stage.gateway.database._pool, stage.gateway.database._batch_pool):  # noqa: SLF001
        pool.expire()


POLICY = f"""
CREATE FUNCTION noisy() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('app.tenant', '42', false), set_config('TimeZone', 'Asia/Tokyo', false); RETURN true; END $$;
CREATE TABLE members (m text); INSERT INTO members VALUES ('x');
CREATE VIEW seen AS SELECT m FROM members WHERE noisy();
GRANT SELECT ON seen, members TO {WEB}; INSERT INTO orders (order_id, last_fence_token) VALUES ('k', 30);
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON orders USING (EXISTS (SELECT FROM seen WHERE m = 'x'))"""


@pytest.mark.parametrize("way", ["read", "keyed", "batched", "PATCH by filter", "explain", "lease", "atomic"])
async def test_what_a_policy_sets_ends_with_the_request(stage: Acting, race: Race, way: str) -> None:
    """A view stands between the policy and the function."""
    await race.observer.execute(POLICY)
    await stage.gateway.catalog.reload()
    await WAYS[way](stage.of(WEB))
    for lend in (stage.gateway.database.connection, stage.gateway.database.for_leases):
        async with lend() as connection:
            found = "SELECT current_setting('TimeZone') || coalesce(current_setting('app.tenant', true), '')"
            assert await connection.fetchval(found) == "UTC"
