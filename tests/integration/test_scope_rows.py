"""PATCH of an array in a table with a scope (R8), stepped: scopes first and sorted, then the rows as they are then."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, Race, entered, mark, scoped_race
from tests.support.use_cases import gateway_pid, listed, once, patch, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome

ONE, TWO, THREE = {"id": 1, "n": 5}, {"id": 2, "n": 6}, {"id": 3, "n": 7}
"""Of the accounts 42, 42 and 7."""


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    return await scoped_race(connect, unmade, getattr(request, "param", "strict"))


async def waits(race: Race, gateway: Gateway, token: int, *rows: Mapping[str, object]) -> asyncio.Task[Outcome]:
    return await race.waits_at(await gateway_pid(gateway), patch(gateway, listed(token, *rows, table="items")))


async def items(race: Race) -> dict[int, int]:
    return {row["id"]: row["n"] for row in await race.observer.fetch("SELECT id, n FROM items")}


UNTOUCHED = {1: 0, 2: 0, 3: 0}


@BOTH_RULES
async def test_rows_of_several_scopes_are_written_and_all_marks_are_raised(race: Race, gateway: Gateway) -> None:
    answer = await patch(gateway, listed(40, THREE, ONE, table="items"))
    assert isinstance(answer, Done)
    assert ['"id":3' in answer.rows[0], '"id":1' in answer.rows[1]] == [True, True]
    assert await items(race) == {1: 5, 2: 0, 3: 7}
    assert (await mark(race), await mark(race, "account/7")) == (40, 40)
    assert result_of(await patch(gateway, listed(40, TWO, table="items"))) == ("FP002" if race.strict else "ok")
    only_keys = await patch(gateway, listed(41, {"id": 2}, {"id": 1}, table="items"))
    assert isinstance(only_keys, Done)
    assert ['"id":2' in only_keys.rows[0], '"n":5' in only_keys.rows[1]] == [True, True]
    assert (await mark(race), await mark(race, "account/7")) == (41, 40)


@pytest.mark.parametrize("with_key", [False, True])
async def test_any_scope_refuses_all_and_gives_the_others_back(race: Race, gateway: Gateway, with_key: bool) -> None:
    await entered(race, race.a, 50, "account/7")
    request = replace(listed(45, ONE, THREE, table="items"), idempotency_key=once() if with_key else None)
    answer = await patch(gateway, request)
    assert isinstance(answer, Problem)
    assert (answer.name, answer.extra["rows"]) == (
        "FP001",
        [{"resource": "account/7", "current_token": race.shown(50)}],
    )
    assert "for 1 of the scopes of items" in answer.detail
    assert await items(race) == UNTOUCHED
    assert await mark(race) is None


async def test_scopes_are_entered_in_their_order_before_any_row(race: Race, gateway: Gateway) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 30, "account/42")
    write = await waits(race, gateway, 40, THREE, ONE)
    assert await race.direct(race.b, "SELECT fencepost.enter('account', '{account/7}', 20)") == "ok", "42 comes first"
    free = "SELECT count(*) FROM (SELECT FROM items FOR UPDATE SKIP LOCKED) AS r"
    assert await race.observer.fetchval(free) == 3
    await holder.commit()
    assert result_of(await write) == "ok"


@pytest.mark.parametrize(("there", "expected"), [(45, "ok"), (60, "FP001")])
async def test_a_row_made_anew_in_another_scope_is_judged_by_that_one(
    race: Race, gateway: Gateway, there: int, expected: str
) -> None:
    holder = await race.begin(race.a)
    await entered(race, race.a, 40, "account/42")
    await entered(race, race.a, there, "account/8")
    await race.a.execute("DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (1, 8)")
    write = await waits(race, gateway, 50, ONE, THREE)
    await holder.commit()
    answer = await write
    assert result_of(answer) == expected
    if isinstance(answer, Problem):
        assert answer.extra["rows"] == [{"resource": "account/8", "current_token": race.shown(60)}]
    assert (await mark(race), await mark(race, "account/8")) == (40, max(there, 50)), "it gave the first mark back"
    assert await items(race) == (UNTOUCHED if expected != "ok" else {1: 5, 2: 0, 3: 7})


async def test_a_missing_row_is_stale_where_its_scope_is_named_and_refuses(race: Race, gateway: Gateway) -> None:
    await entered(race, race.a, 50, "account/9")
    named = [{"id": 1, "account_id": 42}, {"id": 99, "account_id": 9}]
    answer = await patch(gateway, listed(45, *named, table="items"))
    assert isinstance(answer, Problem)
    assert (answer.name, answer.extra["rows"]) == (
        "FP001",
        [{"resource": "account/9", "current_token": race.shown(50)}],
    )
    assert result_of(await patch(gateway, listed(51, *named, table="items"))) == "FP006"
    assert result_of(await patch(gateway, listed(45, ONE, {"id": 99, "n": 1}, table="items"))) == "FP006"
    notes = [{"account_id": 9, "no": 1}]
    assert result_of(await patch(gateway, listed(45, *notes, table="notes"))) == "FP001", "the key names it"
    assert (await mark(race), await mark(race, "account/9")) == (None, 50)
