"""Stepped against each other through the use cases: single-row writes by key (R1, R2, R4, R5); claims, which fence
before the first write (R7); multi-row writes, which are all or nothing (R10); and marks, which outlive rows (R6).
"""

from tests.support.racing import (
    BOTH_RULES,
    NEW,
    ORDERS,
    Race,
    body,
    gateway_pid,
    keyed,
    open_gateway,
    outcome,
    posted,
    protected_table,
    result_of,
)

from fencepost.fencing.problems import Problem
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Token
from fencepost.gateway.claims.claim import Claim
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.use_cases import claim, delete, delete_many, insert, patch, patch_many, put
from fencepost.gateway.writes.matching import FilteredWrite
from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements.many import ManyWritten, TooManyRows


@BOTH_RULES
async def test_put_that_waits_for_a_delete_creates_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "created"), (35, "created")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed(key, token, status="b")))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.live_mark(key) == (token if answer == "created" else None), token


@BOTH_RULES
async def test_put_that_waits_for_a_post_replaces_the_row_or_is_refused(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "ok"), (37, "ok")):
            key = f"k{token}"
            holder = await race.begin(race.a)
            await race.insert(race.a, key, 36, status="a", n=1)
            waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed(key, token, status="b")))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            row = await race.row(key) or {}
            assert (row["status"], row["n"]) == (("b", 0) if answer == "ok" else ("a", 1)), token


@BOTH_RULES
async def test_post_that_loses_to_a_newer_post_is_stale_and_not_a_duplicate(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((35, "FP001"), (36, "FP002" if race.strict else "23505"), (37, "23505")):
            key = f"k{token}"
            holder = await race.begin(race.a)
            await race.insert(race.a, key, 36)
            post = insert(gateway, posted(token, {"order_id": key}))
            waiter = await race.waits_at(await gateway_pid(gateway), post)
            await holder.commit()
            assert result_of(await waiter) == answer, token


@BOTH_RULES
async def test_delete_that_waits_for_a_delete_learns_who_came_first(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "FP006"), (35, "FP006")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), delete(gateway, keyed(key, token)))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.recorded(key) == (34, True), token


async def claimed(gateway: Gateway, key: str, token: int) -> Outcome:
    return await claim(gateway, Claim(Resource("orders", (key,)), Token(token)))


@BOTH_RULES
async def test_a_claim_spends_its_token_like_every_operation(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await claimed(gateway, "k", 30)) == ("FP002" if race.strict else "ok")
        answer = await claimed(gateway, "k", 34)
        assert isinstance(answer, Done)
        assert (answer.mark, answer.resource, len(answer.rows)) == (34, "orders/k", 1)
        assert result_of(await claimed(gateway, "k", 33)) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 34))) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 35))) == "ok"


@BOTH_RULES
async def test_a_claimed_key_without_a_row_refuses_every_older_write(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answer = await claimed(gateway, "k", 40)
        assert isinstance(answer, Done)
        assert (list(answer.rows), answer.mark, answer.resource) == ([], 40, "orders/k")
        assert await race.recorded("k") == (40, True)
        assert result_of(await insert(gateway, posted(39, {"order_id": "k"}))) == "FP001"
        assert result_of(await put(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await delete(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await claimed(gateway, "k", 39)) == "FP001"
        assert result_of(await claimed(gateway, "k", 40)) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 41))) == "FP006"
        assert result_of(await put(gateway, keyed("k", 41))) == "created"
        assert result_of(await claimed(gateway, "k", 42)) == "ok"


@BOTH_RULES
async def test_a_claim_waits_for_a_delete_and_then_claims_the_key(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "ok"), (35, "ok")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), claimed(gateway, key, token))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.recorded(key) == (max(token, 34), True), token


async def seed(race: Race, marks: dict[str, int]) -> None:
    for key, mark in marks.items():
        await race.insert(race.a, key, mark)


@BOTH_RULES
async def test_one_stale_row_refuses_the_request_and_every_one_is_listed(race: Race) -> None:
    await seed(race, {"a": 30, "b": 50, "c": 40, "d": 60})
    listed = {"orders/b": "50", "orders/d": "60"} | ({"orders/c": "40"} if race.strict else {})
    async with open_gateway(race.dsn) as gateway:
        for answer in (
            await patch_many(gateway, FilteredWrite("orders", NEW, Token(40), body(status="x"))),
            await delete_many(gateway, FilteredWrite("orders", NEW, Token(40))),
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
        answer = await patch_many(gateway, FilteredWrite("orders", NEW, Token(40), body(n=1)))
        assert result_of(answer) == ("FP002" if race.strict else "ok")
        answer = await delete_many(gateway, FilteredWrite("orders", NEW, Token(40)))
        assert result_of(answer) == ("FP002" if race.strict else "ok")


async def test_a_multi_row_delete_leaves_a_mark_for_each_row_and_no_token_behind(race: Race) -> None:
    await seed(race, {"a": 30, "b": 31, "c": 32})
    assert isinstance(await race.delete_many(race.b, 40), ManyWritten)
    for key in "abc":
        assert await race.recorded(key) == (40, True)
    await race.insert(race.a, "a", 41)
    assert await race.direct(race.b, "DELETE FROM public.orders") == "FP428"


async def test_more_rows_than_allowed_are_refused_and_none_is_written(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30, "c": 90})
    for verb in (race.update_many, race.delete_many):
        assert await verb(race.b, 40, limit=1) == TooManyRows(1)
    async with open_gateway(race.dsn, max_rows=2) as gateway:
        many = FilteredWrite("orders", NEW, Token(40), body(status="x"))
        assert result_of(await patch_many(gateway, many)) == "FP017"
        assert result_of(await delete_many(gateway, many)) == "FP017"
        assert result_of(await insert(gateway, posted(40, *({"order_id": f"z{n}"} for n in range(3))))) == "FP017"
        assert result_of(await insert(gateway, posted(40, *({"order_id": f"z{n}"} for n in range(2))))) == "created"
    assert [await race.live_mark(key) for key in "abc"] == [30, 30, 90]


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


async def test_one_refused_row_of_a_post_refuses_all(race: Race) -> None:
    await race.insert(race.a, "b", 32)
    await race.delete(race.a, "b", 34)
    async with open_gateway(race.dsn) as gateway:
        answer = await insert(gateway, posted(33, *({"order_id": key} for key in "abc")))
        assert result_of(answer) == "FP001"
    for key in "abc":
        assert await race.row(key) is None
    assert await race.recorded("a") is None


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
