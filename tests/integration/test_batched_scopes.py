"""Scoped writes that share a transaction (R8): one that has entered a scope must not let a neighbour in with it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.test_batched import together
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, Race, mark, scoped_race
from tests.support.use_cases import delete, gateway_pid, keyed, listed, once, open_gateway, patch, post, put, result_of

from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.ops.protect import protect


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    return await scoped_race(connect, unmade, getattr(request, "param", "strict"))


def change(key: str, token: int, **values: object) -> Any:
    return keyed(key, token, table="items", **values)


@BOTH_RULES
async def test_one_token_opens_a_scope_to_one_operation(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        # 1 and 2 are rows of account 42, 3 is of account 7.
        answers = await together(
            patch(gateway, change("1", 40, n=1)),
            patch(gateway, change("2", 40, n=1)),
            patch(gateway, change("3", 40, n=1)),
        )
    assert sorted(answers) == (["FP002", "ok", "ok"] if race.strict else ["ok", "ok", "ok"])
    assert answers[2] == "ok"
    written = await race.observer.fetchval("SELECT sum(n) FROM items")
    assert written == (2 if race.strict else 3)
    assert await mark(race) == await mark(race, "account/7") == 40


async def test_writes_of_many_scopes_share_a_transaction(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answers = await asyncio.gather(patch(gateway, change("1", 40, n=1)), patch(gateway, change("3", 41, n=1)))
    assert [(a.mark, a.scope) for a in answers if isinstance(a, Done)] == [(40, "account/42"), (41, "account/7")]
    assert await race.observer.fetchval("SELECT count(DISTINCT xmin::text) FROM items WHERE n = 1") == 1


async def test_all_verbs(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert await together(
            patch(gateway, change("1", 40, n=1)),
            delete(gateway, change("3", 40)),
            put(gateway, change("8", 40, account_id=8, n=1)),
            put(gateway, change("9", 40, account_id=9, n=1)),
            post(gateway, listed(40, {"id": 10, "account_id": 10}, table="items")),
            post(gateway, listed(40, {"id": 11, "account_id": 11}, table="items")),
            patch(gateway, change("404", 40, n=1)),
            post(gateway, listed(40, {"id": 12, "account_id": None}, table="items")),
            post(gateway, listed(40, {"id": 2, "account_id": 2}, table="items")),
            put(gateway, change("2", 40, account_id=5, n=1)),
        ) == ["ok", "ok", "created", "created", "created", "created", "FP006", "FP016", "23505", "FP016"]
    assert await mark(race, "account/5") is None, "the row is in another scope: its mark stays what it was"
    assert await mark(race, "account/2") is None
    assert await mark(race, "account/8") == 40


async def test_a_neighbours_fault_raises_no_mark(race: Race) -> None:
    await race.observer.execute("ALTER TABLE items ADD CONSTRAINT small CHECK (n < 100)")
    async with open_gateway(race.dsn) as gateway:
        assert await together(patch(gateway, change("1", 40, n=100)), patch(gateway, change("3", 40, n=1))) == [
            "23514",
            "ok",
        ]
    assert await mark(race) is None
    assert await mark(race, "account/7") == 40


async def test_a_held_scope_keeps_no_other_waiting(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT fencepost.enter('account', ARRAY['account/42'], 50)")
        waiter = await race.waits_at(await gateway_pid(gateway), patch(gateway, change("1", 40, n=1)))
        assert await together(patch(gateway, change("3", 40, n=1))) == ["ok"]
        await holder.commit()
        assert result_of(await waiter) == "FP001"


async def test_a_row_that_is_locked_without_its_scope_keeps_no_other_waiting(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT FROM items WHERE id = 1 FOR UPDATE")
        waiter = asyncio.create_task(patch(gateway, change("1", 40, n=1)))
        assert await together(patch(gateway, change("3", 40, n=1))) == ["ok"]
        assert not waiter.done()
        await holder.commit()
        assert result_of(await waiter) == "ok"


async def test_with_keys(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:

        def requests() -> list[Coroutine[Any, Any, Outcome]]:
            return [
                patch(gateway, replace(change("1", 40, n=1), idempotency_key=once("k1"))),
                patch(gateway, replace(change("2", 41, n=1), idempotency_key=once("k1"))),
                patch(gateway, replace(change("3", 40, n=1), idempotency_key=once("k2"))),
            ]

        assert await together(*requests()) == ["ok", "ok", "ok"]
        assert await together(*requests()) == ["ok", "ok", "ok"]
    assert await race.observer.fetchval("SELECT sum(n) FROM items") == 2, "k1 landed once"
    assert await mark(race) == 40


CASCADE = """
CREATE TABLE public.parents (id int PRIMARY KEY, account_id int NOT NULL, code text UNIQUE);
CREATE TABLE public.children (
  id int PRIMARY KEY, account_id int NOT NULL, code text REFERENCES public.parents (code) ON UPDATE CASCADE);
INSERT INTO public.parents VALUES (1, 1, 'x'), (2, 2, 'z');
INSERT INTO public.children VALUES (1, 2, 'x')"""


async def test_a_cascade_does_not_get_into_a_neighbours_scope(race: Race) -> None:
    await race.observer.execute(CASCADE)
    for table in ("parents", "children"):
        await protect(race.observer, table, scope="account/{account_id}", rule=race.rule)
    async with open_gateway(race.dsn) as gateway:
        answers = await together(
            patch(gateway, keyed("1", 40, table="parents", code="y")),  # would write a row of account/2
            patch(gateway, keyed("2", 40, table="parents", code="w")),  # is of account/2
        )
    assert answers == ["FP428", "ok"]
    assert await race.observer.fetchval("SELECT code FROM children") == "x"
