"""PATCH of an array in bad orders, step by step: R4, R5, R6, R10 for rows that the request names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.asking import RULED, ruled
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, Race, open_race, outcome
from tests.support.use_cases import answer_after, gateway_pid, listed, once, open_gateway, patch, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway import attempt
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.write import Write
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.marks import ElementState, ask_elements
from fencepost.server.postgres.tables import ProtectedTable
from fencepost.testing.servers.processes import eventually

if TYPE_CHECKING:
    import asyncio


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """Give three orders with mark 30. In the heap they stand against the order of their keys."""
    race = await open_race(connect, unmade, getattr(request, "param", "strict"))
    for key in "cba":
        await race.insert(race.a, key, 30)
    return race


def changing(token: int, keys: str, *, with_key: bool = False) -> Write:
    request = listed(token, *({"order_id": key, "status": f"x{token}"} for key in keys))
    return replace(request, idempotency_key=once() if with_key else None)


async def statuses(race: Race) -> str:
    rows = await race.observer.fetch("SELECT status FROM orders ORDER BY order_id")
    return " ".join(row["status"] for row in rows)


async def free(race: Race, key: str) -> bool:
    """Whether no session has the row locked."""
    sql = "SELECT EXISTS (SELECT FROM (SELECT FROM orders WHERE order_id = $1 FOR UPDATE SKIP LOCKED) AS r)"
    return bool(await race.observer.fetchval(sql, key))


@BOTH_RULES
@pytest.mark.parametrize(("token", "with_key"), [(44, False), (45, False), (46, False), (45, True)])
async def test_a_row_that_was_waited_for_is_judged_as_it_is_then(
    race: Race, gateway: Gateway, token: int, with_key: bool
) -> None:
    request = patch(gateway, changing(token, "cab", with_key=with_key))
    answer = await answer_after(race, gateway, race.update(race.a, "b", 45, status="newer"), request=request)
    if token == 46 or (token == 45 and not race.strict):
        assert isinstance(answer, Done)
        assert ['"c"' in answer.rows[0], '"a"' in answer.rows[1]] == [True, True], "in the body's order"
        assert await statuses(race) == f"x{token} x{token} x{token}"
        assert [await race.live_mark(key) for key in "abc"] == [token] * 3
        return
    assert isinstance(answer, Problem)
    assert (answer.name, answer.resource) == ("FP001" if token == 44 else "FP002", "orders/b")
    assert answer.extra["rows"] == [{"resource": "orders/b", "current_token": race.shown(45)}]
    assert await statuses(race) == "new newer new"
    assert [await race.live_mark(key) for key in "abc"] == [30, 45, 30]


@pytest.mark.parametrize(("token", "expected"), [(44, "FP001"), (46, "FP006")])
async def test_a_row_deleted_meanwhile_is_a_question(race: Race, gateway: Gateway, token: int, expected: str) -> None:
    request = patch(gateway, changing(token, "abc"))
    answer = await answer_after(race, gateway, race.delete(race.a, "b", 45), request=request)
    assert isinstance(answer, Problem)
    assert (answer.name, answer.resource) == (expected, "orders/b")
    assert await statuses(race) == "new new"
    assert [await race.live_mark(key) for key in "abc"] == [30, None, 30]


@pytest.mark.parametrize(("token", "expected", "with_key"), [(44, "FP001", False), (47, "ok", False), (47, "ok", True)])
async def test_a_row_deleted_and_made_anew_meanwhile_is_met_after_all(
    race: Race, gateway: Gateway, token: int, expected: str, with_key: bool
) -> None:
    deleting, making = race.delete(race.a, "b", 45), race.insert(race.a, "b", 46, status="again")
    request = patch(gateway, changing(token, "abc", with_key=with_key))
    assert result_of(await answer_after(race, gateway, deleting, making, request=request)) == expected
    assert await statuses(race) == ("x47 x47 x47" if expected == "ok" else "new again new")


async def test_a_row_that_is_not_met_is_given_up(race: Race, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it is asked for it is there, and each time that it is to be written it is not."""
    met = 0

    async def there(connection: Connection, table: ProtectedTable, text: str) -> Sequence[ElementState]:
        nonlocal met
        met += 1
        await race.insert(race.a, "b", 30 + 2 * met)
        asked = await ask_elements(connection, table, text)
        await race.delete(race.a, "b", 31 + 2 * met)
        return asked

    await race.delete(race.a, "b", 31)
    monkeypatch.setattr("fencepost.server.gateway.operations.ask_elements", there)
    answer = await patch(gateway, changing(90, "abc"))
    assert isinstance(answer, Problem)
    assert (answer.name, answer.resource, met) == ("FP010", "orders/b", attempt.ROUNDS)
    assert await statuses(race) == "new new"


async def test_inside_a_transaction_a_second_try_holds_no_locks_of_the_first(
    race: Race, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is made anew while b and c are locked. To lock a now would be out of order: a session that has a waits for
    b.
    """
    tries: list[asyncio.Task[object]] = []

    async def in_between(connection: Connection, table: ProtectedTable, text: str) -> Sequence[ElementState]:
        asked = await ask_elements(connection, table, text)
        if not tries:
            await race.c.execute("SELECT FROM orders WHERE order_id = 'a' FOR UPDATE")
            tries.append(await race.waits(race.c, outcome(race.update(race.c, "b", 41))))
        return asked

    monkeypatch.setattr("fencepost.server.gateway.operations.ask_elements", in_between)
    holder = await race.begin(race.a)
    await race.delete(race.a, "a", 35)
    await race.insert(race.a, "a", 36)
    other = await race.begin(race.c)
    write = await race.waits_at(await gateway_pid(gateway), patch(gateway, changing(47, "abc", with_key=True)))
    await holder.commit()

    async def in_the_way() -> bool:
        return bool(tries)

    await eventually(in_the_way)
    assert await tries[0] != "40P01"
    await other.commit()
    assert result_of(await write) == "ok"
    assert await statuses(race) == "x47 x47 x47"


@pytest.mark.parametrize("keys", ["abc", "cba"])
async def test_rows_are_locked_in_key_order_whatever_the_body(race: Race, gateway: Gateway, keys: str) -> None:
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM orders WHERE order_id = 'a' FOR UPDATE")
    write = await race.waits_at(await gateway_pid(gateway), patch(gateway, changing(40, keys)))
    assert await free(race, "b")
    assert await free(race, "c")
    await holder.commit()
    assert result_of(await write) == "ok"


async def test_what_a_policy_keeps_from_being_written_is_missing(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
    for key in "abc":
        await race.insert(race.a, key, 30)
    policies = (
        f"GRANT SELECT, UPDATE ON orders TO {RULED}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY sees ON orders FOR SELECT USING (order_id <> 'c');"
        " CREATE POLICY writes ON orders FOR UPDATE USING (order_id <> 'b')"
    )
    async with ruled(race.observer, race.dsn, policies) as url, open_gateway(url) as gateway:
        for keys, with_key, missing in (("ab", False, "b"), ("ab", True, "b"), ("ca", False, "c")):
            answer = await patch(gateway, changing(40, keys, with_key=with_key))
            assert isinstance(answer, Problem), (keys, with_key)
            assert (answer.name, answer.resource) == ("FP006", f"orders/{missing}"), (keys, with_key)
            hidden = [{"resource": f"orders/{missing}", "current_token": None}]
            assert answer.extra["rows"] == hidden, (keys, with_key)
        assert result_of(await patch(gateway, changing(40, "a"))) == "ok"
