"""`protect --source builtin`: the tokens move past the marks that are there, whichever session writes or draws then
(R12).
"""

import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.scenarios import tokens as scenarios
from tests.scenarios.tokens import HIGH, draw, issued, table, with_token
from tests.support.interleave import Connect, Connection, blocked, start
from tests.support.racing import keyed, open_gateway, open_race, outcome, result_of
from tests.support.violations import judging

from fencepost.cli.main import main
from fencepost.embedded.server import embedded_bin_dir
from fencepost.gateway.use_cases import patch
from fencepost.storage.protecting.protect import LOCK_TIMEOUT_MS, ProtectError, plan_protect, protect
from fencepost.storage.protecting.table import HIGHEST_MARK
from fencepost.storage.upkeep.reset import reset
from fencepost.testing.servers.waiting import PATIENCE

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


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda each: each.__name__)
async def test_the_next_token_is_above_every_mark(
    scenario: Callable[[Connect], Awaitable[None]], connect: Connect
) -> None:
    with judging():
        await scenario(connect)


async def test_tokens_that_are_above_all_marks_stay_where_they_are(db: Connection) -> None:
    await db.execute("SELECT setval('fencepost.tokens', 9000)")
    await protect(db, "t", source="builtin")
    assert await draw(db) == 9001
    await db.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    await protect(db, "fresh", source="builtin")
    assert await draw(db) == 9002


async def test_the_source_changes_back_and_forth_and_is_kept_otherwise(db: Connection) -> None:
    async def source() -> str:
        name: str = await db.fetchval("SELECT source || ' ' || rule FROM fencepost.protected")
        return name

    for known in (HIGH, HIGH + 100):
        await protect(db, "t", source="builtin")
        assert (await source(), await issued(db)) == ("builtin strict", known), known
        assert await with_token(db, known + 1, WRITE) == "FP018", known
        await protect(db, "t")
        assert await source() == "builtin strict", "what is, is kept"
        await protect(db, "t", rule="epoch")
        assert await source() == "builtin epoch", known
        assert await with_token(db, known + 1, WRITE) == "FP018", known
        await protect(db, "t", rule="strict", source="external")
        assert await with_token(db, known + 100, WRITE) == "ok", "external takes any token"


async def test_external_functions_do_not_know_of_the_sequence(db: Connection) -> None:
    bodies = "SELECT string_agg(prosrc, '' ORDER BY proname) FROM pg_proc WHERE proname ~ '^t_[0-9a-f]{10}_'"
    before = await db.fetchval(bodies)
    await protect(db, "t", source="builtin")
    assert "issued" in await db.fetchval(bodies)
    await protect(db, "t", source="external")
    assert await db.fetchval(bodies) == before
    assert "issued" not in before


async def test_the_printed_sql_moves_the_tokens_too(db: Connection, database: str) -> None:
    script = (await plan_protect(db, "t", None, "builtin")).script()
    assert await issued(db) == 0
    psql = [str(embedded_bin_dir() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", database]
    run = await asyncio.to_thread(subprocess.run, psql, input=script, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert await draw(db) == HIGH + 1
    assert await with_token(db, HIGH + 1, WRITE) == "ok"


async def test_a_name_that_is_also_a_format(connect: Connect) -> None:
    db = await table(connect)
    name = "a 100%L 's"
    await db.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY)')
    await protect(db, name)
    await db.execute(f'INSERT INTO "{name}" VALUES (1, {HIGH})')
    await protect(db, name, source="builtin")
    assert await draw(db) == HIGH + 1
    await protect(db, name, source="external", max_token=2**63 - 1)
    await db.execute(f'UPDATE "{name}" SET last_fence_token = {HIGHEST_MARK + 1}')
    with pytest.raises(ProtectError, match=re.escape("a 100%25L 's/1")):
        await protect(db, name, source="builtin")


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


async def test_a_protect_that_fails_has_not_moved_the_tokens(db: Connection) -> None:
    plan = await plan_protect(db, "t", None, "builtin")
    moving = db.transaction()
    await moving.start()
    for statement in plan.statements:
        await db.execute(statement)
    await moving.rollback()
    assert await draw(db) == 1


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


async def test_the_command_line_reports_the_source_and_what_is_in_the_way(db: Connection, database: str) -> None:
    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])

    unknown = await run("protect", "t", "--source", "nowhere")
    assert unknown.exit_code == 1
    assert "there is no source nowhere; known are builtin, external" in unknown.output
    made = await run("protect", "t", "--source", "builtin")
    assert (made.exit_code, made.output) == (0, "t is protected: writes need a token\n")
    status = await run("status")
    assert re.search(r"^t +strict +builtin ", status.output, re.MULTILINE), status.output
    await run("protect", "t", "--source", "external", "--max-token", "9223372036854775807")
    await db.execute(f"UPDATE t SET last_fence_token = {HIGHEST_MARK + 1}")
    refused = await run("protect", "t", "--source", "builtin")
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: t:\n  t/2 has the mark 4611686018427387905, above 2^62")
    printed = await run("protect", "t", "--source", "builtin", "--sql")
    assert (printed.exit_code, "fencepost.issue_beyond" in printed.output) == (0, True)


async def test_a_column_that_was_there_is_read(connect: Connect, database: str) -> None:
    """The marks of rows that were updated are in that column only."""
    race = await open_race(connect, database, "strict")
    await race.insert(race.a, "k", 30)
    await race.update(race.a, "k", 5000)
    with pytest.raises(ProtectError, match="has the mark 5000, above 40"):
        await protect(race.observer, "orders", max_token=40)
    await protect(race.observer, "orders", source="builtin")
    assert await race.observer.fetchval("SELECT fencepost.issued()") >= 5000
