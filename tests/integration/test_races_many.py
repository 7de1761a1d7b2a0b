"""R10: multi-row writes are all or nothing, over the rows that matched and still match once they are locked."""

from tests.support.racing import NEW, Race, body, gateway_pid, open_gateway, outcome, posted, result_of

from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.gateway.use_cases import delete_many, insert, patch_many
from fencepost.gateway.writes.matching import FilteredWrite
from fencepost.storage.statements.many import ManyWritten, TooManyRows


async def seed(race: Race, marks: dict[str, int]) -> None:
    for key, mark in marks.items():
        await race.insert(race.a, key, mark)


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


async def test_rows_that_only_equal_the_token_are_spent_under_strict(race: Race) -> None:
    await seed(race, {"a": 30, "b": 40})
    async with open_gateway(race.dsn) as gateway:
        answer = await patch_many(gateway, FilteredWrite("orders", NEW, Token(40), body(n=1)))
        assert result_of(answer) == ("FP002" if race.strict else "ok")
        answer = await delete_many(gateway, FilteredWrite("orders", NEW, Token(40)))
        assert result_of(answer) == ("FP002" if race.strict else "ok")


async def test_a_row_deleted_while_we_waited_is_left_out(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30, "c": 30})
    holder = await race.begin(race.a)
    await race.delete(race.a, "b", 45)
    waiter = await race.waits(race.b, outcome(race.update_many(race.b, 40, status="x")))
    await holder.commit()
    answer = await waiter
    assert isinstance(answer, ManyWritten)
    assert len(answer.rows) == 2
    assert await race.recorded("b") == (45, True)


async def test_a_multi_row_delete_leaves_a_mark_for_each_row_and_no_token_behind(race: Race) -> None:
    await seed(race, {"a": 30, "b": 31, "c": 32})
    assert isinstance(await race.delete_many(race.b, 40), ManyWritten)
    for key in "abc":
        assert await race.recorded(key) == (40, True)
    await race.insert(race.a, "a", 41)
    assert await race.direct(race.b, "DELETE FROM public.orders") == "FP428"


async def test_rows_inserted_meanwhile_are_neither_judged_nor_written(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30})
    holder = await race.begin(race.a)
    await race.update(race.a, "b", 31)
    await race.insert(race.a, "bb", 90)
    waiter = await race.waits(race.b, outcome(race.update_many(race.b, 40, status="x")))
    await holder.commit()
    answer = await waiter
    assert isinstance(answer, ManyWritten)
    assert [await race.live_mark(key) for key in ("a", "b", "bb")] == [40, 40, 90]


async def test_two_multi_row_deletes_of_the_same_rows_end_with_one_of_them(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30})
    holder = await race.begin(race.a)
    assert isinstance(await race.delete_many(race.a, 40), ManyWritten)
    waiter = await race.waits(race.b, outcome(race.delete_many(race.b, 41)))
    await holder.commit()
    assert await waiter == ManyWritten([])
    assert await race.recorded("a") == (40, True)


async def test_a_multi_row_write_that_waits_for_a_keyed_one_gives_way_to_a_newer_token(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30})
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.update(race.a, "b", 45)
        many = patch_many(gateway, FilteredWrite("orders", NEW, Token(44), body(status="x")))
        waiter = await race.waits_at(await gateway_pid(gateway), many)
        await holder.commit()
        answer = await waiter
    assert isinstance(answer, Problem)
    assert (answer.name, answer.resource, answer.current_token) == ("FP001", "orders/b", 45)
    assert [await race.live_mark(key) for key in "ab"] == [30, 45]


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


async def test_exactly_as_many_rows_as_allowed_are_written(race: Race) -> None:
    await seed(race, {"a": 30, "b": 30})
    assert isinstance(await race.update_many(race.b, 40, limit=2, n=1), ManyWritten)
    assert isinstance(await race.delete_many(race.b, 41, limit=2), ManyWritten)


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


async def test_a_refusal_of_direct_sql_in_a_transaction_takes_its_other_rows_back(race: Race) -> None:
    await seed(race, {"a": 30, "b": 50})
    assert await race.direct(race.a, "UPDATE public.orders SET n = 1", 40) == "FP409"
    assert await race.direct(race.a, "DELETE FROM public.orders", 40) == "FP409"
    assert [(await race.row(key) or {})["n"] for key in "ab"] == [0, 0]
    assert await race.recorded("a") == (30, False)


async def test_control_a_plain_conditional_update_writes_a_part(race: Race) -> None:
    await seed(race, {"a": 30, "b": 50})
    partial = "UPDATE public.orders SET status = 'x', last_fence_token = 40 WHERE last_fence_token < 40"
    assert await race.a.execute(partial) == "UPDATE 1"


async def test_control_heap_order_deadlocks(race: Race) -> None:
    await race.observer.execute("CREATE TABLE w (id text PRIMARY KEY, n int); INSERT INTO w VALUES ('b', 0), ('a', 0)")
    one, two = await race.begin(race.a), await race.begin(race.b)
    await race.a.execute("SELECT FROM public.w WHERE id = 'a' FOR NO KEY UPDATE")
    waiting = await race.waits(race.b, outcome(race.b.execute("UPDATE public.w SET n = 1")))
    assert "40P01" in (await outcome(race.a.execute("UPDATE public.w SET n = 2")), await waiting)
    await one.rollback()
    await two.rollback()


async def test_control_rows_that_are_not_locked_first_are_judged_by_an_old_snapshot(race: Race) -> None:
    """The judgement is "nothing is stale", the write then waits, and writes over 45."""
    await race.observer.execute("CREATE TABLE w (id text, mark bigint); INSERT INTO w VALUES ('a', 30), ('b', 30)")
    holder = await race.begin(race.a)
    await race.a.execute("UPDATE public.w SET mark = 45 WHERE id = 'b'")
    unlocked = "UPDATE public.w SET mark = 40 WHERE NOT EXISTS (SELECT FROM public.w o WHERE o.mark >= 40)"
    waiting = await race.waits(race.b, race.b.execute(unlocked))
    await holder.commit()
    assert await waiting == "UPDATE 2"
    assert await race.observer.fetchval("SELECT mark FROM w WHERE id = 'b'") == 40
