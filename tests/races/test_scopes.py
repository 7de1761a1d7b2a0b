"""Writes to tables of a scope, in bad orders, by the gateway and by direct SQL (R8, R14)."""

import asyncpg
from tests.races.openings import Opening, on_scopes, opened
from tests.support.interleave import Connection, connection_to
from tests.support.racing import CASCADES, ITEMS, PARTS, Race, entered, mark, open_race, outcome

from fencepost.server.ops.protect import protect, unprotect

STRICT, EPOCH, BUILTIN = on_scopes(), on_scopes("epoch"), on_scopes(source="builtin")
pytestmark = opened(STRICT)


@opened(STRICT, EPOCH)
async def test_first_touch_is_ordered(race: Race) -> None:
    """Two enter a scope that has no mark yet: the second waits, and is judged by the first one's token."""
    for number, (token, refused_by) in enumerate(((34, 35), (35, 35 if race.strict else None), (36, None))):
        scope = f"account/{100 + number}"
        holder = await race.begin(race.a)
        assert await entered(race, race.a, 35, scope) == {scope: None}
        waiter = await race.waits(race.b, entered(race, race.b, token, scope))
        await holder.commit()
        assert await waiter == {scope: refused_by}


async def test_later_statements_see_the_older_holders_work(race: Race) -> None:
    """R8: the write follows the mark in a later statement, so nothing that an older holder commits is missed."""
    holder = await race.begin(race.a)
    await entered(race, race.a, 35, "account/42")
    await race.a.execute("INSERT INTO items VALUES (50, 42, 1)")
    newer = await race.begin(race.b)
    waiter = await race.waits(race.b, entered(race, race.b, 36, "account/42"))
    await holder.commit()
    assert await waiter == {"account/42": None}
    assert await race.b.fetchval("SELECT count(*) FROM items WHERE account_id = 42") == 3
    await newer.commit()


async def test_crossing_writers_do_not_deadlock(race: Race) -> None:
    """Scopes are taken in one order, however they are named."""
    await race.a.execute("SET lock_timeout = '300ms'")
    holder = await race.begin(race.c)
    await entered(race, race.c, 40, "account/42")
    waiter = await race.waits(race.b, entered(race, race.b, 41, "account/7", "account/42"))
    # A transaction that waits for the first of its scopes has none of the later ones.
    assert await entered(race, race.a, 40, "account/7") == {"account/7": None}
    await holder.commit()
    assert await waiter == {"account/42": None, "account/7": None}


@opened(STRICT, EPOCH)
async def test_direct_sql_is_judged(race: Race) -> None:
    a = race.a
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1") == "FP428"
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1", 50) == "ok"
    assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 2", 49) == "FP409"
    assert await race.direct(a, "INSERT INTO notes VALUES (42, 1)", 49) == "FP409"
    assert await race.direct(a, "DELETE FROM items WHERE id = 2", 49) == "FP409"
    assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 2", 50) == ("FP409" if race.strict else "ok")
    # One transaction is one operation, over all tables of the scope; a token for one table is not for the other.
    assert (
        await race.direct(a, "UPDATE items SET n = 3 WHERE account_id = 42; INSERT INTO notes VALUES (42, 1)", 51)
        == "ok"
    )
    assert await race.direct(a, "DELETE FROM notes", "items=52") == "FP428"
    assert await race.direct(a, "UPDATE items SET account_id = 7 WHERE id = 1", 53) == "FP400"
    assert await race.direct(a, "INSERT INTO items VALUES (9, NULL)", 53) == "FP400"
    assert await race.direct(a, "TRUNCATE items", 53) == "FP428"
    assert await mark(race) == 51


@opened(STRICT, EPOCH)
async def test_pruned_scope_leaves_a_floor(race: Race) -> None:
    await entered(race, race.a, 40, "account/42")
    assert await race.observer.fetchval("SELECT fencepost.prune('account', 45)") == 1
    assert await entered(race, race.a, 44, "account/42") == {"account/42": 45}
    assert await entered(race, race.a, 45, "account/43") == {"account/43": 45 if race.strict else None}


async def test_old_snapshot_fails(race: Race) -> None:
    """REPEATABLE READ: what was committed, or pruned, after the snapshot is a serialization failure."""
    for change in ("SELECT fencepost.enter('account', '{account/42}', 60)", "SELECT fencepost.prune('account', 61)"):
        snapshot = race.a.transaction(isolation="repeatable_read")
        await snapshot.start()
        await race.a.execute("SELECT FROM items")
        await race.b.execute(change)
        assert await entered(race, race.a, 70, "account/42") == "40001", change
        await snapshot.rollback()


async def test_an_old_snapshot_reads_no_old_rule(race: Race) -> None:
    snapshot = race.a.transaction(isolation="repeatable_read")
    await snapshot.start()
    await race.a.execute("SELECT FROM items")
    await race.b.execute("UPDATE fencepost.protected SET requires_key = true WHERE scope IS NOT NULL")
    assert await entered(race, race.a, 70, "account/42") == "40001"
    await snapshot.rollback()


async def test_a_scope_of_no_table_is_not_entered(race: Race) -> None:
    assert await outcome(race.a.fetch("SELECT fencepost.enter('accounts', '{accounts/1}', 50)")) == "FP000"


@opened(BUILTIN)
async def test_tokens_that_were_never_issued_are_refused(race: Race) -> None:
    assert await entered(race, race.a, 2**60, "account/42") == "FP018"


# The table `items`, whose rows have marks of their own.
@opened(Opening("items", lambda connect, unmade: open_race(connect, unmade, ddl=ITEMS, name="items")))
async def test_no_stale_token_gets_in_by_entering_and_leaving_a_scope(race: Race) -> None:
    a, owner = race.a, race.observer
    assert await race.direct(a, "INSERT INTO items VALUES (1, 42)", 30) == "ok"
    assert await race.direct(a, "INSERT INTO items VALUES (2, 7); DELETE FROM items WHERE id = 2", 20) == "ok"
    await protect(owner, "items", scope="account/{account_id}")
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1", 30) == "FP409"
    assert await race.direct(a, "INSERT INTO items VALUES (2, 7)", 20) == "FP409"
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1", 40) == "ok"
    for leave in (unprotect(owner, "items"), protect(owner, "items", scope="")):
        await leave
        await protect(owner, "items", scope="")
        assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 40) == "FP409"
        assert await race.direct(a, "INSERT INTO items VALUES (5, 42)", 40) == "FP409"
        await protect(owner, "items", scope="account/{account_id}")
        assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 40) == "FP409"
    assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 41) == "ok"


async def test_only_the_gateway_may_enter(race: Race) -> None:
    await race.observer.execute("CREATE ROLE scope_stranger")
    try:
        await race.a.execute("SET ROLE scope_stranger")
        assert await outcome(race.a.fetch("SELECT fencepost.enter('account', '{account/1}', 9)")) == "42501"
        await race.a.execute("RESET ROLE")
    finally:
        await race.observer.execute("DROP ROLE scope_stranger")


# Direct SQL


async def test_a_later_trigger_moves_no_row_into_a_scope_unjudged(race: Race) -> None:
    """BEFORE triggers fire by name, and a user's may come after ours."""
    mover = """
        CREATE FUNCTION public.move() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF NEW.n = 99 THEN NEW.account_id := 7; END IF; RETURN NEW; END';
        CREATE TRIGGER zzzz_move BEFORE INSERT OR UPDATE ON public.items FOR EACH ROW EXECUTE FUNCTION public.move()"""
    await race.observer.execute(mover)
    await entered(race, race.a, 80, "account/7")
    assert await race.direct(race.a, "INSERT INTO items VALUES (60, 42, 99)", 50) == "FP409"
    assert await race.direct(race.a, "INSERT INTO items VALUES (60, 42, 99)", 81) == "ok"
    assert await mark(race, "account/7") == 81
    assert await race.direct(race.a, "UPDATE items SET n = 99 WHERE id = 1", 82) == "FP400"


async def test_a_column_of_the_scope_keeps_its_type(race: Race) -> None:
    """As numeric(9, 1) the account 42 would be 42.0, and its mark forgotten."""
    for change in ("TYPE numeric(9, 1)", "TYPE text"):
        assert await outcome(race.observer.execute(f"ALTER TABLE items ALTER account_id {change}")) == "0A000", change
    assert await outcome(race.observer.execute("ALTER TABLE items DROP COLUMN account_id")) == "2BP01"


async def test_a_renamed_column_stays_the_scopes(race: Race) -> None:
    """Another column takes the name that the template has: the rows' scopes, and their marks, stay theirs."""
    await race.observer.execute("ALTER TABLE items ADD other int NOT NULL DEFAULT 7")
    await entered(race, race.a, 50, "account/42")
    for old, new in (("account_id", "was"), ("other", "account_id")):
        await race.observer.execute(f"ALTER TABLE items RENAME {old} TO {new}")
    async with connection_to(race.dsn) as fresh:  # other sessions have plans that know the column by its name
        assert await race.direct(fresh, "UPDATE items SET n = 9 WHERE id = 1", 49) == "FP409"
        assert await race.direct(fresh, "UPDATE items SET n = 9 WHERE id = 1", 51) == "ok"
        assert await race.direct(fresh, "UPDATE items SET account_id = 8 WHERE id = 1", 52) == "ok", "no scope's column"
        assert await race.direct(fresh, "UPDATE items SET was = 8 WHERE id = 1", 53) == "FP400"


async def test_every_kind_of_statement_is_judged(race: Race) -> None:
    a = race.a
    await entered(race, a, 50, "account/42")
    await entered(race, a, 60, "account/7")
    merge = (
        "MERGE INTO items i USING (VALUES (1, 42), (70, 42)) v(id, account_id) ON i.id = v.id"
        " WHEN MATCHED THEN UPDATE SET n = i.n + 1 WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.account_id)"
    )
    upsert = "INSERT INTO items VALUES (1, {0}, 5) ON CONFLICT (id) DO UPDATE SET n = excluded.n"
    for sql, stale, fresh in (
        (merge if a.get_server_version().major >= 15 else "UPDATE items SET n = 3 WHERE id = 1", 49, 51),
        (upsert.format(42), 50, 52),
        # It asks for account 7 and meets a row of account 42: both must let it pass.
        (upsert.format(7), 55, 61),
        ("INSERT INTO items VALUES (71, 42) ON CONFLICT DO NOTHING", 60, 62),
        ("WITH gone AS (DELETE FROM items WHERE id = 71 RETURNING *) INSERT INTO notes SELECT 7, 1 FROM gone", 61, 63),
        ("UPDATE items SET n = 9 WHERE account_id IN (7, 42)", 62, 64),
    ):
        assert await race.direct(a, sql, stale) == "FP409", sql
        assert await race.direct(a, sql) == "FP428", sql
        assert await race.direct(a, sql, fresh) == "ok", sql
    assert await copy(a, 60, 42) == "FP409"
    assert await copy(a, 65, 42) == "ok"


async def copy(connection: Connection, token: int, account: int) -> str:
    """COPY one row; "ok" or the SQLSTATE."""
    try:
        async with connection.transaction():
            await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
            await connection.copy_records_to_table(
                "items", records=[(800 + token, account)], columns=["id", "account_id"]
            )
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"
    return "ok"


async def test_an_older_writer_that_waited_for_the_row_is_refused(race: Race) -> None:
    """The newer holder has written the row: the older UPDATE waits for it, and is judged afterwards."""
    holder = await race.begin(race.a)
    assert await entered(race, race.a, 40, "account/42") == {"account/42": None}
    await race.a.execute("UPDATE items SET n = 40 WHERE id = 1")
    waiters = [
        await race.waits(race.b, race.direct(race.b, "UPDATE items SET n = 39 WHERE id = 1", 39)),
        await race.waits(race.c, race.direct(race.c, "INSERT INTO notes VALUES (42, 39)", 39)),
    ]
    await holder.commit()
    assert [await waiter for waiter in waiters] == ["FP409", "FP409"]
    assert await race.observer.fetchval("SELECT n FROM items WHERE id = 1") == 40


async def test_cascades_are_judged_by_the_scopes_of_what_they_reach(race: Race) -> None:
    a, source = race.a, race.fence.source
    await race.observer.execute(CASCADES)
    for table in ("lines", "owned"):
        await protect(race.observer, table, scope="account/{account_id}", rule=race.rule, source=source)
    await protect(race.observer, "tags", rule=race.rule, source=source)
    await entered(race, a, 60, "account/7")
    # Item 1's line is of the same scope, item 2's of one that has gone further, item 3's tag has a mark of its own.
    assert await race.direct(a, "DELETE FROM items WHERE id = 1", "items=50") == "ok"
    assert await race.direct(a, "DELETE FROM items WHERE id = 2", "items=55") == "FP428"
    assert await race.direct(a, "DELETE FROM items WHERE id = 2", 55) == "FP409"
    assert await race.direct(a, "DELETE FROM items WHERE id = 2", 61) == "ok"
    assert await race.direct(a, "DELETE FROM items WHERE id = 3", "items=62") == "FP428"
    assert await race.direct(a, "DELETE FROM items WHERE id = 3", 62) == "ok"
    # A cascade must not take a row out of its scope either.
    assert await race.direct(a, "UPDATE accounts SET id = 43 WHERE id = 42", 70) == "FP400"
    assert await race.direct(a, "DELETE FROM accounts WHERE id = 42", 70) == "FP400"
    assert await race.observer.fetchval("SELECT count(*) FROM lines") == 0


async def test_partitions_are_judged_whichever_way_they_are_reached(race: Race) -> None:
    a = race.a
    await race.observer.execute(PARTS)
    await protect(race.observer, "parts", scope="account/{account_id}", rule=race.rule, source=race.fence.source)
    later_part = "CREATE TABLE public.parts_us PARTITION OF public.parts FOR VALUES IN ('us')"
    await race.observer.execute(later_part)
    assert await race.direct(a, "INSERT INTO parts VALUES ('eu', 1, 42), ('us', 2, 42)", 50) == "ok"
    for table in ("parts", "parts_eu"):
        assert await race.direct(a, f"UPDATE {table} SET account_id = 7", 51) == "FP400", table
        assert await race.direct(a, f"DELETE FROM {table} WHERE id = 1", 49) == "FP409", table
        assert await race.direct(a, f"INSERT INTO {table} VALUES ('eu', 9, 42)", 49) == "FP409", table
        assert await race.direct(a, f"INSERT INTO {table} VALUES ('eu', 9, 42)") == "FP428", table
    # A row that moves to another partition is deleted there and inserted here.
    assert await race.direct(a, "UPDATE parts SET region = 'us' WHERE id = 1", 49) == "FP409"
    assert await race.direct(a, "UPDATE parts SET region = 'us' WHERE id = 1", 52) == "ok"
    assert await race.direct(a, "UPDATE parts SET region = 'eu', account_id = 7 WHERE id = 1", 53) == "FP400"
    assert await mark(race) == 52


async def test_broken_glass_is_recorded_and_a_claim_waits_for_it(race: Race) -> None:
    """A claimant reads once its claim is through: what broke the glass before must be there by then."""
    await entered(race, race.a, 40, "account/42")
    for scope, sql in (
        ("account/42", "UPDATE items SET n = 77 WHERE id = 1; INSERT INTO notes VALUES (42, 77)"),
        ("account/300", "INSERT INTO items VALUES (300, 300, 77)"),
    ):
        glass = await race.begin(race.b)
        await race.b.execute("SET LOCAL fencepost.break_glass = 'INC-1: test'")
        await race.b.execute(sql)
        claim = await race.waits(race.a, entered(race, race.a, 41, scope))
        await glass.commit()
        assert await claim == {scope: None}, (scope, sql)
    assert (
        await race.direct(race.b, "SET LOCAL fencepost.break_glass = 'INC-2'; DELETE FROM items WHERE id = 1") == "ok"
    )
    assert await mark(race) == 41
    first = "SET LOCAL fencepost.break_glass = 'INC-3'; INSERT INTO items VALUES (301, 301, 77)"
    assert await race.direct(race.b, first) == "ok"
    assert await race.direct(race.b, "UPDATE items SET n = 1 WHERE id = 301", 1) == "ok", "no mark was made up"
    logged = await race.observer.fetch(
        "SELECT name, verb, resource, reason FROM fencepost.break_glass_log ORDER BY xid, name"
    )
    assert [tuple(row) for row in logged] == [
        ("items", "UPDATE", "account/42", "INC-1: test"),
        ("notes", "INSERT", "account/42", "INC-1: test"),
        ("items", "INSERT", "account/300", "INC-1: test"),
        ("items", "DELETE", "account/42", "INC-2"),
        ("items", "INSERT", "account/301", "INC-3"),
    ]


async def test_a_stale_first_touch_waits_for_the_pruning_and_meets_the_floor(race: Race) -> None:
    await entered(race, race.a, 40, "account/42")
    pruning = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.prune('account', 45)")
    stale = await race.waits(race.a, entered(race, race.a, 44, "account/42"))
    await pruning.commit()
    assert await stale == {"account/42": 45}


async def test_a_table_that_left_the_scope_is_not_entered_for(race: Race) -> None:
    """The gateway believes that items has the scope, waits for the transaction that changes that, and is refused
    (FP000).
    """
    enter = (
        "SELECT * FROM fencepost.enter('account', '{account/42}', 50, 'public.items'::regclass, 'account/{account_id}')"
    )
    assert isinstance(await outcome(race.a.fetch(enter)), list)
    changing = await race.begin(race.b)
    await race.b.execute("SELECT pg_advisory_xact_lock(hashtextextended('fencepost.scope/account', 0))")
    await race.b.execute("UPDATE fencepost.protected SET scope = NULL WHERE name = 'items'")
    waiter = await race.waits(race.a, outcome(race.a.fetch(enter.replace("50", "51"))))
    await changing.commit()
    assert await waiter == "FP000"
    assert await mark(race) == 50
