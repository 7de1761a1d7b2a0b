"""R6: marks outlive rows, through deletes and re-creations, unprotect and protect, renames; and tempting variants."""

from tests.support.racing import (
    ORDERS,
    Race,
    gateway_pid,
    keyed,
    open_gateway,
    outcome,
    posted,
    protected_table,
    result_of,
)

from fencepost.gateway.use_cases import delete, insert, patch, put
from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.storage.tables.catalog import EVERYTHING
from fencepost.storage.tables.load import load

UPSERT = (
    "INSERT INTO public.wm AS k VALUES ('k', $1) ON CONFLICT (id) DO UPDATE SET mark = excluded.mark"
    " WHERE k.mark < excluded.mark RETURNING 1"
)
W = "CREATE TABLE w (id text PRIMARY KEY, mark bigint); CREATE TABLE wm (id text PRIMARY KEY, mark bigint);"


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


async def test_an_insert_waits_for_an_insert_that_aborts_and_leaves_no_mark(race: Race) -> None:
    holder = await race.begin(race.a)
    await race.insert(race.a, "k", 36)
    waiter = await race.waits(race.b, outcome(race.insert(race.b, "k", 30)))
    await holder.rollback()
    assert isinstance(await waiter, list)
    assert await race.recorded("k") == (30, False)


async def test_a_delete_waits_for_an_insert_only_once_it_is_there(race: Race) -> None:
    """An INSERT under way is invisible: DELETE finds no row and no mark, and that was true when it looked."""
    holder = await race.begin(race.a)
    await race.insert(race.a, "k", 33)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await delete(gateway, keyed("k", 34))) == "FP006"
        await holder.commit()
        assert result_of(await delete(gateway, keyed("k", 34))) == "ok"
    assert await race.recorded("k") == (34, True)


async def test_an_update_that_waited_for_a_delete_knows_the_mark_that_it_left(race: Race) -> None:
    await race.insert(race.a, "k", 32)
    holder = await race.begin(race.a)
    await race.delete(race.a, "k", 34)
    waiter = await race.waits(race.b, race.update(race.b, "k", 33))
    await holder.commit()
    assert await waiter is None
    assert await race.verdict("k", 33) == "stale"
    assert await race.verdict("k", 40) == "missing"


async def test_one_refused_row_of_a_post_refuses_all(race: Race) -> None:
    await race.insert(race.a, "b", 32)
    await race.delete(race.a, "b", 34)
    async with open_gateway(race.dsn) as gateway:
        answer = await insert(gateway, posted(33, *({"order_id": key} for key in "abc")))
        assert result_of(answer) == "FP001"
    for key in "abc":
        assert await race.row(key) is None
    assert await race.recorded("a") is None


async def test_on_conflict_do_nothing_moves_no_mark(race: Race) -> None:
    await race.insert(race.a, "k", 36)
    nothing = "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', 50) ON CONFLICT DO NOTHING"
    assert await race.direct(race.a, nothing) == "ok"
    assert await race.recorded("k") == (36, False)
    assert await race.live_mark("k") == 36


async def test_a_mark_never_falls_by_deleting_and_making_anew(race: Race) -> None:
    for token in range(10, 40, 3):
        await race.insert(race.a, "k", token)
        assert await race.update(race.a, "k", token + 1)
        assert await race.delete(race.a, "k", token + 2)
        assert await race.recorded("k") == (token + 2, True)
        assert await outcome(race.insert(race.b, "k", token + 1)) == "FP409"


async def test_rows_written_while_unprotected_take_up_their_marks(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.delete(race.a, "k", 34)
    await unprotect(race.observer, "orders")
    await race.observer.execute("INSERT INTO orders (order_id) VALUES ('k'), ('other')")
    await protect(race.observer, "orders", rule=race.rule)
    race.table = await protected_table(race.observer, "orders")
    assert [await race.live_mark(key) for key in ("k", "other")] == [34, 0]
    assert await race.update(race.b, "k", 33) is None
    assert await race.verdict("k", 33) == "stale"
    assert await race.update(race.b, "k", 35)


async def test_protect_again_changes_nothing(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "z", 30)
    await race.delete(race.a, "z", 40)
    before = await race.observer.fetch("SELECT name, rule, source, key_columns, functions FROM fencepost.protected")
    for _ in range(2):
        await protect(race.observer, "orders")
    after = await race.observer.fetch("SELECT name, rule, source, key_columns, functions FROM fencepost.protected")
    assert after == before
    assert race.fence == (await load(race.observer, EVERYTHING, 2)).tables["orders"].fence
    assert await race.live_mark("k") == 30
    assert await race.recorded("z") == (40, True)
    assert await outcome(race.insert(race.b, "z", 39)) == "FP409"


async def test_a_changed_rule_holds_from_the_next_write_on(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    other = "epoch" if race.strict else "strict"
    await protect(race.observer, "orders", rule="epoch" if race.strict else "strict")
    race.table = await protected_table(race.observer, "orders")
    assert race.rule == other
    assert (await race.update(race.b, "k", 30) is None) == race.strict
    assert (await race.delete(race.b, "k", 30) is None) == race.strict


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


async def test_a_table_dropped_and_made_anew_goes_on_from_the_marks_of_its_name(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await race.delete(race.a, "k", 34)
    await race.observer.execute("DROP TABLE orders CASCADE")  # its functions go with it
    await race.observer.execute(ORDERS)
    await race.observer.execute("INSERT INTO orders (order_id) VALUES ('k')")
    await protect(race.observer, "orders", rule=race.rule)
    race.table = await protected_table(race.observer, "orders")
    assert await race.live_mark("k") == 34
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await put(gateway, keyed("k", 33))) == "FP001"


async def test_a_put_whose_row_comes_and_goes_ends(race: Race) -> None:
    """UPDATE finds nothing, INSERT waits for another INSERT that commits, and its row is the one that is replaced."""
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.insert(race.a, "k", 30)
        waiter = await race.waits_at(await gateway_pid(gateway), put(gateway, keyed("k", 35, status="b")))
        await race.delete(race.a, "k", 31)
        await race.insert(race.a, "k", 32)
        await holder.commit()
        assert result_of(await waiter) == "ok"
    assert await race.live_mark("k") == 35


async def test_control_not_exists_resurrects_what_a_successor_deletes(race: Race) -> None:
    await race.observer.execute(W + "INSERT INTO w VALUES ('k', 32)")
    holder = await race.begin(race.a)
    await race.a.execute("DELETE FROM public.w WHERE mark < 34; INSERT INTO public.wm VALUES ('k', 34)")
    insert_if = (
        "INSERT INTO public.w SELECT 'k', 33 WHERE NOT EXISTS (SELECT FROM public.wm WHERE mark >= 33) RETURNING 1"
    )
    waiter = await race.waits(race.b, race.b.fetchval(insert_if))
    await holder.commit()
    assert await waiter == 1
    assert await race.observer.fetchval("SELECT mark FROM w") == 33


async def test_control_mark_first_deadlocks_with_a_row_trigger(race: Race) -> None:
    """DELETE has the row and wants the mark; an INSERT that took the mark first wants the key."""
    await race.observer.execute(W + "INSERT INTO w VALUES ('k', 32)")
    one, two = await race.begin(race.a), await race.begin(race.b)
    await race.a.execute("DELETE FROM public.w WHERE mark < 34")
    await race.b.execute(UPSERT.replace("$1", "33"))
    inserting = await race.waits(race.b, outcome(race.b.execute("INSERT INTO public.w VALUES ('k', 33)")))
    deleting = outcome(race.a.execute(UPSERT.replace("$1", "34")))
    assert "40P01" in (await deleting, await inserting)
    await one.rollback()
    await two.rollback()


async def test_control_mark_and_delete_in_one_statement_miss_the_row(race: Race) -> None:
    await race.observer.execute(W)
    holder = await race.begin(race.a)
    await race.a.execute(f"WITH m AS ({UPSERT}) INSERT INTO public.w SELECT 'k', $1 FROM m".replace("$1", "33"))
    both = f"WITH m AS ({UPSERT}) DELETE FROM public.w USING m WHERE id = 'k' AND w.mark < $1 RETURNING id"
    waiter = await race.waits(race.b, race.b.fetch(both.replace("$1", "34")))
    await holder.commit()
    assert await waiter == []
    assert await race.observer.fetchval("SELECT array_agg(w.mark) || array_agg(wm.mark) FROM w, wm") == [33, 34]


async def test_control_a_floor_read_with_the_mark_lets_an_older_token_in(race: Race) -> None:
    await race.observer.execute(
        W + "INSERT INTO wm VALUES ('k', 30); CREATE TABLE wf (floor bigint); INSERT INTO wf VALUES (0)"
    )
    together = f"WITH m AS ({UPSERT}) SELECT (SELECT count(*) FROM m) = 1 AND $1 > (SELECT floor FROM public.wf)"
    holder = await race.begin(race.a)
    await race.a.execute("UPDATE public.wf SET floor = 30; DELETE FROM public.wm")
    waiter = await race.waits(race.b, race.b.fetchval(together.replace("$1", "29")))
    await holder.commit()
    assert await waiter is True
