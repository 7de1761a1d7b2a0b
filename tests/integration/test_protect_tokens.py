"""`protect --source builtin`: the tokens move past the marks that are there, whichever session writes or draws then
(R12).
"""

import asyncio

import asyncpg
import pytest
from tests.races.test_moved_tokens import HIGH, draw, issued, table, with_token
from tests.support.interleave import Connect, Connection, blocked, start
from tests.support.postgres import Unmade
from tests.support.racing import open_race, outcome
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.ddl import HIGHEST_MARK
from fencepost.server.ops.protect import LOCK_TIMEOUT_MS, plan_protect, protect
from fencepost.server.postgres.upkeep import reset
from fencepost.testing.servers.processes import PATIENCE

WITHIN_DEADLOCK_TIMEOUT = (
    "SELECT 2 * $1 <= setting::int FROM pg_settings WHERE name = 'deadlock_timeout' AND unit = 'ms'"
)
"""Half of it at most: a busy machine runs a timer late."""
WRITE = "UPDATE t SET v = v || '!' WHERE id = 2"


@pytest.fixture
async def db(connect: Connect) -> Connection:
    """Give the owner's connection; t takes external tokens and has a row with a high mark."""
    connection = await table(connect)
    await with_token(connection, HIGH, "INSERT INTO t VALUES (2, 'a')")
    return connection


async def test_tokens_that_are_above_all_marks_stay_where_they_are(db: Connection) -> None:
    await db.execute("SELECT setval('fencepost.tokens', 9000)")
    await protect(db, "t", source="builtin")
    assert await draw(db) == 9001
    await db.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    await protect(db, "fresh", source="builtin")
    assert await draw(db) == 9002


async def test_no_session_draws_while_the_tokens_move(db: Connection, connect: Connect) -> None:
    """The race of a grant with `protect`: its token is drawn before and stays below, or after and is above."""
    grant, observer = await connect(), await connect()
    assert await draw(grant) == 1
    plan = await plan_protect(db, "t", None, "builtin")
    moving = db.transaction()
    await moving.start()
    for statement in plan.statements:
        await db.execute(statement)
    drawing = await start(observer, draw(grant), grant.get_server_pid())
    assert not drawing.done()
    await moving.commit()
    assert await drawing == HIGH + 1
    assert await with_token(db, HIGH + 1, WRITE) == "ok"


async def test_who_has_drawn_and_wants_the_table_goes_first(db: Connection, connect: Connect) -> None:
    """A grant has its token and wants the table, which protect has, and protect wants to move the tokens."""
    grant, observer = await connect(), await connect()
    assert await grant.fetchval(WITHIN_DEADLOCK_TIMEOUT, LOCK_TIMEOUT_MS), "protect gives way, and not the grant"
    await grant.execute("SET deadlock_timeout = '1min'")  # half a second may not be enough on a machine that is busy
    await grant.execute("BEGIN")
    await draw(grant)
    protecting = asyncio.create_task(protect(db, "t", source="builtin"))
    await blocked(db, observer)
    claim = f"UPDATE public.t SET last_fence_token = {HIGH + 7} WHERE id = 2"
    assert await asyncio.wait_for(outcome(grant.execute(claim)), PATIENCE) == "UPDATE 1"
    await grant.execute("COMMIT")
    await protecting
    assert await draw(db) == HIGH + 8


async def test_a_deadlock_with_a_grant_is_tried_again(db: Connection, connect: Connect) -> None:
    """The same, where it is protect that PostgreSQL picks to give way."""
    grant, holder, observer = await connect(), await connect(), await connect()
    await db.execute("SET deadlock_timeout = '10ms'")
    await grant.execute("SET deadlock_timeout = '1min'")
    await grant.execute("BEGIN")
    await draw(grant)
    await holder.execute("BEGIN; SELECT FROM fencepost.protected FOR UPDATE")  # stops protect with the table in hand
    protecting = await start(observer, protect(db, "t", source="builtin"), db.get_server_pid())
    claim = f"UPDATE public.t SET last_fence_token = {HIGH + 7} WHERE id = 2"
    claiming = await start(observer, grant.execute(claim), grant.get_server_pid())
    assert not protecting.done()
    assert not claiming.done()
    await holder.execute("COMMIT")
    assert await asyncio.wait_for(claiming, PATIENCE) == "UPDATE 1"
    await grant.execute("COMMIT")
    await protecting
    assert await draw(db) == HIGH + 8


async def test_a_gateway_that_has_not_loaded_the_change_is_refused_by_the_triggers(
    db: Connection, database: str
) -> None:
    async with open_gateway(database) as gateway:
        await protect(db, "t", source="builtin")
        stale = gateway.catalog.current.find("t")
        assert stale is not None
        assert stale.fence is not None
        assert not stale.fence.pinned
        assert result_of(await patch(gateway, keyed("2", HIGH + 1, table="t", v="x"))) == "FP018"


TOO_HIGH = [
    (f"UPDATE t SET last_fence_token = {HIGHEST_MARK + 1}", "t/2 has the mark 4611686018427387905"),
    (f"SELECT fencepost.raise_mark('t/7', {2**63 - 1}, 'strict', true)", "t/7 has the mark 9223372036854775807"),
    (f"SELECT fencepost.prune('t', {2**63 - 1})", "The floor of t has the mark 9223372036854775807"),
]


@pytest.mark.parametrize(("harm", "text_given"), TOO_HIGH, ids=["row", "without a row", "floor"])
async def test_a_mark_with_too_little_above_it_is_in_the_way(db: Connection, harm: str, text_given: str) -> None:
    await protect(db, "t", max_token=2**63 - 1)
    await db.execute(harm)
    with pytest.raises(ProtectError) as caught:
        await protect(db, "t", source="builtin")
    assert text_given in caught.value.reasons[0]
    assert await db.fetchval("SELECT source FROM fencepost.protected") == "external"
    assert await issued(db) == 0
    # What the message advises helps.
    resource = "t" if text_given.startswith("The floor") else text_given.split(maxsplit=1)[0]
    named = resource if resource == "t" else f"'{resource}'"
    assert f"fencepost fence reset {named} --to N" in caught.value.reasons[1]
    await reset(db, resource, HIGH, "INC-7")
    await protect(db, "t", source="builtin")
    assert await with_token(db, await draw(db), WRITE) == "ok"


async def test_the_highest_mark_that_can_be_gone_beyond(db: Connection) -> None:
    await protect(db, "t", max_token=HIGHEST_MARK)
    await db.execute(f"UPDATE t SET last_fence_token = {HIGHEST_MARK}")
    await protect(db, "t", source="builtin")
    assert await with_token(db, await draw(db), WRITE) == "ok"


async def test_a_new_table_is_not_read(db: Connection) -> None:
    """Its column came a moment ago, so no row has a mark: the lock is held for milliseconds however large it is."""
    await db.execute("CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 1000)")

    async def rows_read_by_protect(name: str, source: str | None) -> int:
        count = f"SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_xact_user_tables WHERE relname = '{name}'"
        plan = await plan_protect(db, name, None, source)
        async with db.transaction():
            before: int = await db.fetchval(count)
            for statement in plan.statements:
                await db.execute(statement)
            after: int = await db.fetchval(count)
        return after - before

    assert await rows_read_by_protect("big", "builtin") == 0
    assert await rows_read_by_protect("t", "builtin") == 1
    assert await rows_read_by_protect("t", None) == 0, "repeating it reads no row"


async def test_only_who_may_move_the_tokens(db: Connection) -> None:
    await db.execute("CREATE ROLE somebody; GRANT USAGE ON SCHEMA fencepost TO somebody; SET ROLE somebody")
    try:
        for statement in ("SELECT fencepost.issue_beyond(9)", "SELECT nextval('fencepost.tokens')"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await db.execute(statement)
        assert await issued(db) == 0, "and everybody may look"
    finally:
        await db.execute("RESET ROLE; DROP OWNED BY somebody; DROP ROLE somebody")


async def test_a_column_that_was_there_is_read(connect: Connect, unmade: Unmade) -> None:
    """The marks of rows that were updated are in that column only."""
    race = await open_race(connect, unmade, "strict")
    await race.insert(race.a, "k", 30)
    await race.update(race.a, "k", 5000)
    with pytest.raises(ProtectError, match="has the mark 5000, above 40"):
        await protect(race.observer, "orders", max_token=40)
    await protect(race.observer, "orders", source="builtin")
    assert await race.observer.fetchval("SELECT fencepost.issued()") >= 5000
