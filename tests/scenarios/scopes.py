"""As races.py: scoped writes. They run in test_scope_races, and against the mutants of test_scope_mutants."""

from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect, unprotect

DDL = """
CREATE TABLE public.items (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0)"""
MORE = """
CREATE TABLE public.notes (account_id bigint, no int, PRIMARY KEY (account_id, no));
INSERT INTO public.items VALUES (1, 42), (2, 42), (3, 7)"""


async def scoped_race(connect: Connect, database: Unmade | str, rule: Rule, source: str = "external") -> Race:
    return await open_race(connect, database, rule, ddl=DDL, name="items", source=source, then=prepare)


async def prepare(race: Race) -> None:
    await unprotect(race.observer, "items")
    await race.observer.execute(MORE)
    for table in ("items", "notes"):
        await protect(race.observer, table, scope="account/{account_id}", rule=race.rule, source=race.fence.source)


async def entered(_race: Race, connection: object, token: int, *scopes: str) -> object:
    """Enter as the gateway does: {scope: refused_by}, or an SQLSTATE."""
    rows = await outcome(
        connection.fetch("SELECT * FROM fencepost.enter('account', $1, $2)", list(scopes), token)  # type: ignore[attr-defined]
    )
    return rows if isinstance(rows, str) else {row["scope"]: row["refused_by"] for row in rows}


async def mark(race: Race, scope: str = "account/42") -> int | None:
    found: int | None = await race.observer.fetchval(
        "SELECT last_fence_token FROM fencepost.marks WHERE resource = $1", scope
    )
    return found


async def first_touch_is_ordered(race: Race) -> None:
    """Two enter a scope that has no mark yet: the second waits, and is judged by the first one's token."""
    for number, (token, refused_by) in enumerate(((34, 35), (35, 35 if race.strict else None), (36, None))):
        scope = f"account/{100 + number}"
        holder = await race.begin(race.a)
        assert await entered(race, race.a, 35, scope) == {scope: None}
        waiter = await race.waits(race.b, entered(race, race.b, token, scope))
        await holder.commit()
        assert await waiter == {scope: refused_by}


async def later_statements_see_the_older_holders_work(race: Race) -> None:
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


async def crossing_writers_do_not_deadlock(race: Race) -> None:
    """Scopes are taken in one order, however they are named."""
    await race.a.execute("SET lock_timeout = '300ms'")
    holder = await race.begin(race.c)
    await entered(race, race.c, 40, "account/42")
    waiter = await race.waits(race.b, entered(race, race.b, 41, "account/7", "account/42"))
    # A transaction that waits for the first of its scopes has none of the later ones.
    assert await entered(race, race.a, 40, "account/7") == {"account/7": None}
    await holder.commit()
    assert await waiter == {"account/42": None, "account/7": None}


async def direct_sql_is_judged(race: Race) -> None:
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


async def pruned_scope_leaves_a_floor(race: Race) -> None:
    await entered(race, race.a, 40, "account/42")
    assert await race.observer.fetchval("SELECT fencepost.prune('account', 45)") == 1
    assert await entered(race, race.a, 44, "account/42") == {"account/42": 45}
    assert await entered(race, race.a, 45, "account/43") == {"account/43": 45 if race.strict else None}


async def old_snapshot_fails(race: Race) -> None:
    """REPEATABLE READ: what was committed, or pruned, after the snapshot is a serialization failure."""
    for change in ("SELECT fencepost.enter('account', '{account/42}', 60)", "SELECT fencepost.prune('account', 61)"):
        snapshot = race.a.transaction(isolation="repeatable_read")
        await snapshot.start()
        await race.a.execute("SELECT FROM items")
        await race.b.execute(change)
        assert await entered(race, race.a, 70, "account/42") == "40001", change
        await snapshot.rollback()


async def an_old_snapshot_reads_no_old_rule(race: Race) -> None:
    snapshot = race.a.transaction(isolation="repeatable_read")
    await snapshot.start()
    await race.a.execute("SELECT FROM items")
    await race.b.execute("UPDATE fencepost.protected SET requires_key = true WHERE scope IS NOT NULL")
    assert await entered(race, race.a, 70, "account/42") == "40001"
    await snapshot.rollback()


async def a_scope_of_no_table_is_not_entered(race: Race) -> None:
    assert await outcome(race.a.fetch("SELECT fencepost.enter('accounts', '{accounts/1}', 50)")) == "FP000"


async def tokens_that_were_never_issued_are_refused(race: Race) -> None:
    assert await entered(race, race.a, 2**60, "account/42") == "FP018"


ALL = (
    first_touch_is_ordered, later_statements_see_the_older_holders_work, crossing_writers_do_not_deadlock,
    direct_sql_is_judged, pruned_scope_leaves_a_floor, old_snapshot_fails, an_old_snapshot_reads_no_old_rule,
    a_scope_of_no_table_is_not_entered,
)  # fmt: skip
