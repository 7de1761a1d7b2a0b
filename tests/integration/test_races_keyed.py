"""Stepped against each other through the use cases: single-row writes by key (R1, R2, R4, R5); claims, which fence
before the first write (R7); multi-row writes, which are all or nothing (R10); and marks, which outlive rows (R6).
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.racing import BOTH_RULES, NEW, ORDERS, Race, outcome, protected_table
from tests.support.use_cases import (
    answer_after,
    delete,
    keyed,
    listed,
    matching,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.many import ManyWritten


@BOTH_RULES
async def test_put_that_waits_for_a_post_replaces_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "ok"), (37, "ok")):
            key = f"k{token}"
            making, request = race.insert(race.a, key, 36, status="a", n=1), put(gateway, keyed(key, token, status="b"))
            assert result_of(await answer_after(race, gateway, making, request=request)) == answer, token
            row = await race.row(key) or {}
            assert (row["status"], row["n"]) == (("b", 0) if answer == "ok" else ("a", 1)), token


@BOTH_RULES
async def test_post_that_loses_to_a_newer_post_is_stale_and_not_a_duplicate(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "23505"), (37, "23505")):
            key = f"k{token}"
            making, request = race.insert(race.a, key, 36), post(gateway, listed(token, {"order_id": key}))
            assert result_of(await answer_after(race, gateway, making, request=request)) == answer, token


async def claimed(gateway: Gateway, key: str, token: int) -> Outcome:
    return await claim(gateway, Claim(Resource("orders", (key,)), Token(token)))


@pytest.mark.parametrize("race", ["epoch"], indirect=True)
async def test_under_epoch_a_claim_and_writes_share_a_token(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((30, "ok"), (34, "ok"), (33, "FP001"), (34, "ok")):
            assert result_of(await claimed(gateway, "k", token)) == answer, token
        assert result_of(await patch(gateway, keyed("k", 34))) == "ok"


@BOTH_RULES
async def test_a_claimed_key_without_a_row_refuses_every_older_write(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answer = await claimed(gateway, "k", 40)
        assert isinstance(answer, Done)
        assert (list(answer.rows), answer.mark, answer.resource) == ([], 40, "orders/k")
        assert await race.recorded("k") == (40, True)
        assert result_of(await post(gateway, listed(39, {"order_id": "k"}))) == "FP001"
        assert result_of(await put(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await delete(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await claimed(gateway, "k", 39)) == "FP001"
        assert result_of(await claimed(gateway, "k", 40)) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 41))) == "FP006"
        assert result_of(await put(gateway, keyed("k", 41))) == "created"
        assert result_of(await claimed(gateway, "k", 42)) == "ok"


REQUESTS: dict[str, tuple[Callable[[Gateway, str, int], Coroutine[Any, Any, Outcome]], str]] = {
    "put": (lambda gateway, key, token: put(gateway, keyed(key, token, status="b")), "created"),
    "delete": (lambda gateway, key, token: delete(gateway, keyed(key, token)), "FP006"),
    "claim": (claimed, "ok"),
}
"""Requests to one key, and what they are answered if they find no row and their token passes."""


@BOTH_RULES
@pytest.mark.parametrize("name", REQUESTS)
async def test_what_waits_for_a_delete_is_refused_or_finds_no_row(race: Race, name: str) -> None:
    send, passed = REQUESTS[name]
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else passed), (35, passed)):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            deleting, request = race.delete(race.a, key, 34), send(gateway, key, token)
            assert result_of(await answer_after(race, gateway, deleting, request=request)) == answer, token
            assert await race.live_mark(key) == (token if answer == "created" else None), token
            raised = answer in ("created", "ok")
            assert await race.recorded(key) == (token if raised else 34, answer != "created"), token


async def seed(race: Race, marks: dict[str, int]) -> None:
    for key, mark in marks.items():
        await race.insert(race.a, key, mark)


@BOTH_RULES
async def test_one_stale_row_refuses_the_request_and_every_one_is_listed(race: Race) -> None:
    await seed(race, {"a": 30, "b": 50, "c": 40, "d": 60})
    listed = {"orders/b": "50", "orders/d": "60"} | ({"orders/c": "40"} if race.strict else {})
    async with open_gateway(race.dsn) as gateway:
        for answer in (
            await patch(gateway, matching(NEW, 40, status="x")),
            await delete(gateway, matching(NEW, 40)),
        ):
            assert isinstance(answer, Problem)
            assert answer.name == "FP001"
            rows = answer.extra["rows"]
            assert isinstance(rows, list)
            assert {row["resource"]: row["current_token"] for row in rows} == {
                resource: race.shown(int(mark)) for resource, mark in listed.items()
            }
    assert [await race.live_mark(key) for key in "abcd"] == [30, 50, 40, 60]


@BOTH_RULES
async def test_rows_that_only_equal_the_token_are_spent_under_strict(race: Race) -> None:
    await seed(race, {"a": 30, "b": 40})
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, matching(NEW, 40, n=1))
        assert result_of(answer) == ("FP002" if race.strict else "ok")
        answer = await delete(gateway, matching(NEW, 40))
        assert result_of(answer) == ("FP002" if race.strict else "ok")


async def test_a_multi_row_delete_leaves_a_mark_for_each_row_and_no_token_behind(race: Race) -> None:
    await seed(race, {"a": 30, "b": 31, "c": 32})
    assert isinstance(await race.delete_many(race.b, 40), ManyWritten)
    for key in "abc":
        assert await race.recorded(key) == (40, True)
    await race.insert(race.a, "a", 41)
    assert await race.direct(race.b, "DELETE FROM public.orders") == "FP428"


async def test_a_filter_that_matches_nothing_writes_nothing_and_is_no_refusal(race: Race) -> None:
    assert await race.update_many(race.b, 40, status="x") == ManyWritten([])
    assert await race.delete_many(race.b, 40) == ManyWritten([])
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 0


async def test_two_posts_of_the_same_keys_in_crossing_order_do_not_deadlock(race: Race) -> None:
    """Rows go in by key, whatever the body's order; the answer keeps the body's."""
    holder = await race.begin(race.a)
    rows = await race.insert_rows(race.a, [{"order_id": "b"}, {"order_id": "a"}], 36)
    assert ['"b"' in row.json for row in rows] == [True, False]
    waiter = await race.waits(race.b, outcome(race.insert_rows(race.b, [{"order_id": "a"}, {"order_id": "b"}], 35)))
    await holder.commit()
    assert await waiter == "23505"


async def test_an_insert_that_waited_for_a_delete_that_aborts_meets_a_duplicate(race: Race) -> None:
    await race.insert(race.a, "k", 32)
    holder = await race.begin(race.a)
    await race.delete(race.a, "k", 34)
    waiter = await race.waits(race.b, outcome(race.insert(race.b, "k", 33)))
    await holder.rollback()
    assert await waiter == "23505"
    assert await race.verdict("k", 33) == "again"
    assert await outcome(race.insert(race.b, "k", 31)) == "23505"
    assert await race.verdict("k", 31) == "stale"


async def test_marks_move_with_a_renamed_table_that_is_protected_again(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 34)
    await race.observer.execute("SELECT fencepost.prune('orders', 10)")
    await race.observer.execute("ALTER TABLE orders RENAME TO sales")
    assert await race.direct(race.a, "INSERT INTO public.sales VALUES ('gone', 'x', 0, 33)") == "FP409"
    await protect(race.observer, "sales")
    race.table = await protected_table(race.observer, "sales")
    assert (race.fence.name, race.rule) == ("sales", race.table.fence and race.table.fence.rule)
    assert await race.recorded("gone") == (34, True)
    assert await outcome(race.insert(race.b, "gone", 33)) == "FP409"
    assert await race.delete(race.b, "k", 31)
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE resource LIKE 'orders/%'") == 0
    assert await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = 'sales'") == 10
    left = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname LIKE 'orders_%'"
    assert await race.observer.fetchval(left) == 0


async def test_a_renamed_table_is_not_written_until_it_is_protected_again(race: Race) -> None:
    """Another table may have taken its old name by then, and its functions would delete from that one."""
    await race.insert(race.a, "k", 30)
    await race.observer.execute("ALTER TABLE orders RENAME TO orders_old")
    await race.observer.execute(ORDERS)
    await race.observer.execute("ALTER TABLE orders ADD last_fence_token bigint NOT NULL DEFAULT 0")
    await race.observer.execute("INSERT INTO orders VALUES ('k', 'of another table', 0, 1)")
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await delete(gateway, keyed("k", 31, "orders_old"))) == "FP005"
        assert result_of(await patch(gateway, keyed("k", 31, "orders_old"))) == "FP005"
        assert result_of(await patch(gateway, keyed("k", 31))) == "FP005"
    assert await race.observer.fetchval("SELECT status FROM orders WHERE order_id = 'k'") == "of another table"
