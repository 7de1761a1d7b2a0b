"""Two connections with direct SQL, stepped: the second waits for the first, and is judged by what that one left."""

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import REASON, Race, open_race, outcome

from fencepost.server.ops.protect import protect

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
UPDATE_FROM = "UPDATE public.orders o SET n = s.n FROM (VALUES ('k', 7)) s(id, n) WHERE o.order_id = s.id"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
UPSERT = INSERT + " ON CONFLICT (order_id) DO UPDATE SET n = public.orders.n + 10"
NOTHING = INSERT + " ON CONFLICT DO NOTHING"
_MERGE = "MERGE INTO public.orders o USING (VALUES ('k')) s(id) ON o.order_id = s.id WHEN "
MERGE_UPDATE = _MERGE + "MATCHED THEN UPDATE SET n = o.n + 1"
MERGE_DELETE = _MERGE + "MATCHED THEN DELETE"
MERGE_INSERT = _MERGE + "NOT MATCHED THEN INSERT (order_id) VALUES (s.id)"
MERGE_BOTH = MERGE_UPDATE + " WHEN NOT MATCHED THEN INSERT (order_id) VALUES (s.id)"
CTE = "WITH u AS (UPDATE public.orders SET n = n + 1 WHERE order_id = 'k' RETURNING n) SELECT count(*) FROM u"
LOCK = "SELECT FROM public.orders WHERE order_id = 'k' FOR UPDATE"
COPIED = "COPY public.orders (order_id) FROM STDIN"

DELETES = [DELETE, MERGE_DELETE]
INSERTS = [INSERT, UPSERT, NOTHING, MERGE_INSERT, MERGE_BOTH, COPIED]


@pytest.fixture(params=["strict-external", "epoch-builtin"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    rule, _, source = request.param.partition("-")
    return await open_race(connect, unmade, rule, source=source)


async def start_over(race: Race, *, mark: int | None = 30, absent: int | None = None) -> None:
    """The row k at this mark, or the mark of its absence, behind the triggers' back."""
    await race.observer.execute(
        "SET session_replication_role = replica; DELETE FROM orders; DELETE FROM fencepost.marks"
    )
    if absent is None and mark is not None:
        await race.observer.execute("INSERT INTO orders VALUES ('k', 'new', 0, $1)", mark)
    if (known := absent or mark) is not None:
        await race.observer.execute(
            "INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)"
            " VALUES ('orders/k', $1, '3', $2)",
            known,
            absent is not None,
        )
    await race.observer.execute("RESET session_replication_role")


async def run(race: Race, statement: str, token: int) -> str:
    """Run it in b, in a transaction of its own."""
    if statement != COPIED:
        return await race.direct(race.b, statement, token)
    try:
        async with race.b.transaction():
            await race.b.execute(f"SET LOCAL fencepost.token = '{token}'")
            await race.b.copy_records_to_table("orders", schema_name="public", columns=["order_id"], records=[("k",)])
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"
    return "ok"


async def against(
    race: Race, first: str, first_token: int, second: str, second_token: int, *, commit: bool = True
) -> str:
    """Run `first` in a, let `second` wait for it in b, and end a; what became of the second."""
    holder = await race.begin(race.a)
    await race.a.execute(f"SET LOCAL fencepost.token = '{first_token}'")
    await race.a.execute(first)
    waiter = await race.waits(race.b, run(race, second, second_token))
    await (holder.commit() if commit else holder.rollback())
    return await waiter


def judged(race: Race, token: int, mark: int) -> str:
    return "ok" if token > mark or (token == mark and not race.strict) else "FP409"


async def test_a_write_that_waits_for_an_update_is_judged_by_its_mark(race: Race) -> None:
    writes_of_a_row = [UPDATE, UPDATE_FROM, DELETE, UPSERT, MERGE_UPDATE, MERGE_DELETE, MERGE_BOTH, CTE]
    updates = [each for each in writes_of_a_row if each not in DELETES]
    for first, second in [(UPDATE, each) for each in writes_of_a_row] + [(each, UPDATE) for each in updates[1:]]:
        for token in (39, 40, 41):
            await start_over(race)
            assert await against(race, first, 40, second, token) == judged(race, token, 40), (first, second, token)
            row = await race.row("k")
            if token == 39:
                assert row is not None, token
                assert row["last_fence_token"] == 40, token
            if second in DELETES and judged(race, token, 40) == "ok":
                assert row is None, token
                assert await race.recorded("k") == (token, True), token


async def test_an_insert_that_waits_for_a_delete_is_judged_by_the_mark_that_it_left(race: Race) -> None:
    for first in DELETES:
        for second in (INSERT, UPSERT, NOTHING, COPIED):
            for token in (39, 40, 41):
                await start_over(race)
                assert await against(race, first, 40, second, token) == judged(race, token, 40), (first, second, token)
                recorded = await race.recorded("k")
                accepted = judged(race, token, 40) == "ok"
                assert recorded == ((token, False) if accepted else (40, True)), (first, second, token)
                assert await race.live_mark("k") == (token if accepted else None), token


async def test_a_write_that_waits_for_a_delete_finds_no_row_and_leaves_its_mark(race: Race) -> None:
    for first in DELETES:
        for second in (UPDATE, UPDATE_FROM, DELETE, MERGE_UPDATE, MERGE_DELETE, CTE):
            for token in (39, 41):
                await start_over(race)
                assert await against(race, first, 40, second, token) == "ok", "no row, no verdict: as SQL has it"
                assert await race.row("k") is None, token
                assert await race.recorded("k") == (40, True), token
        # MERGE decides anew once the row is gone: it inserts, and is judged by the mark.
        for token in (39, 41):
            await start_over(race)
            assert await against(race, first, 40, MERGE_BOTH, token) == judged(race, token, 40), token
            assert await race.live_mark("k") == (None if token == 39 else 41), token


async def test_two_inserts_of_one_key(race: Race) -> None:
    for first in (INSERT, UPSERT, MERGE_INSERT):
        for second in INSERTS:
            for token in (39, 41):
                await start_over(race, absent=30)
                expected = {NOTHING: "ok", UPSERT: judged(race, token, 40)}.get(second, "23505")
                found = await against(race, first, 40, second, token)
                # Since PostgreSQL 17 a MERGE looks again when another transaction has inserted meanwhile, or does not.
                assert found == expected or second in (MERGE_INSERT, MERGE_BOTH), (first, second, token, found)
                live = await race.live_mark("k")
                assert live == (41 if found == "ok" and token == 41 and second in (UPSERT, MERGE_BOTH) else 40), token


async def test_an_insert_that_waits_for_one_that_is_undone_is_judged_by_the_mark_before(race: Race) -> None:
    for second in INSERTS:
        for token in (29, 31):
            await start_over(race, absent=30)
            assert await against(race, INSERT, 40, second, token, commit=False) == judged(race, token, 30), second
            assert await race.recorded("k") == ((31, False) if token == 31 else (30, True)), token


async def test_a_holder_that_locked_first_still_writes_before_the_one_that_waits(race: Race) -> None:
    for second, token in ((UPDATE, 39), (DELETE, 39), (UPSERT, 39), (UPDATE, 41)):
        await start_over(race)
        holder = await race.begin(race.a)
        await race.a.execute(f"SET LOCAL fencepost.token = '40'; {LOCK}")
        waiter = await race.waits(race.b, run(race, second, token))
        await race.a.execute(UPDATE)
        await holder.commit()
        assert await waiter == judged(race, token, 40), second


async def test_a_savepoint_that_is_rolled_back_lets_the_waiting_write_go_by_the_mark_before(race: Race) -> None:
    for first in (UPDATE, DELETE, UPSERT, MERGE_BOTH):
        await start_over(race)
        holder = await race.begin(race.a)
        await race.a.execute(f"SET LOCAL fencepost.token = '40'; SAVEPOINT s; {first}")
        waiter = await race.waits(race.b, run(race, UPDATE, 35))
        await race.a.execute("ROLLBACK TO s")
        assert await waiter == "ok", first
        # And the first, whose transaction goes on, is judged by what happened in between.
        await race.a.execute("SET LOCAL fencepost.token = '34'; SAVEPOINT t")
        assert await outcome(race.a.execute(UPDATE)) == "FP409", first
        await race.a.execute(f"ROLLBACK TO t; SET LOCAL fencepost.token = '41'; {UPDATE}")
        await holder.commit()
        assert await race.live_mark("k") == 41, first


async def test_break_glass_against_a_holder_of_a_token(race: Race) -> None:
    for operator in (UPDATE, DELETE, UPSERT):
        for holder_first in (True, False):
            await start_over(race)
            transaction = await race.begin(race.a)
            if holder_first:
                await race.a.execute(f"SET LOCAL fencepost.token = '40'; {UPDATE}")
                waiter = await race.waits(
                    race.b, race.direct(race.b, f"SET LOCAL fencepost.break_glass = '{REASON}'; {operator}")
                )
                expected, mark = "ok", 40
            else:
                await race.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'; {operator}")
                waiter = await race.waits(race.b, run(race, UPSERT, 29))
                expected, mark = "FP409", 30
            await transaction.commit()
            assert await waiter == expected, (operator, holder_first)
            assert await race.live_mark("k") == (None if operator == DELETE else mark), holder_first
            assert await run(race, UPSERT, mark - 1) == "FP409", (operator, holder_first)


async def test_a_cascade_waits_for_a_newer_holder_of_the_child_and_is_refused_as_a_whole(race: Race) -> None:
    await race.observer.execute(
        "CREATE TABLE child (id int PRIMARY KEY, n int, p text REFERENCES orders ON DELETE CASCADE)"
    )
    await protect(race.observer, "child", rule=race.rule)
    await race.insert(race.a, "k", 30)
    assert await race.direct(race.a, "INSERT INTO public.child VALUES (1, 0, 'k'), (2, 0, 'k')", 30) == "ok"
    assert await against(race, "UPDATE public.child SET n = 1 WHERE id = 2", 50, DELETE, 45) == "FP409"
    assert await race.observer.fetchval("SELECT count(*) FROM child") == 2
    assert await race.live_mark("k") == 30
    assert await against(race, "UPDATE public.child SET n = 2 WHERE id = 1", 51, DELETE, 52) == "ok"
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE row_absent") == 3
