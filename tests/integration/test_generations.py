"""Generations (R19): the command, doctor, and a gateway that meets another origin."""

import asyncio
import re
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.gateways import in_process
from tests.support.interleave import Connect
from tests.support.racing import mutate, open_race, owner

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import sources, upkeep
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import QuarantinedError
from fencepost.server.startup import StartupError
from fencepost.testing.servers.processes import eventually


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments])


async def test_the_command_shows_history_and_state_and_raises(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    found = await run("generation", "--database-url", database)
    assert found.exit_code == 0
    assert re.search(r"generation 0 \([0-9a-f-]{36}\): system", found.output)
    assert "accepted" in found.output
    done = await run("generation", "--database-url", database, "raise", "--reason", "a drill")
    assert done.exit_code == 0, done.output
    assert f"Tokens begin at {await connection.fetchval('SELECT fencepost.oldest()')}" in done.output
    found = await run("generation", "--database-url", database)
    assert ": a drill" in found.output
    await connection.execute("UPDATE fencepost.generations SET timeline = 99")
    found = await run("generation", "--database-url", database)
    assert (found.exit_code, "REFUSED: This PostgreSQL is system" in found.output) == (1, True)
    for reason in ("", "  "):
        refused = await run("generation", "--database-url", database, "raise", "--reason", reason)
        assert (refused.exit_code, "a reason is needed" in refused.output) == (2, True), refused.output
    with pytest.raises(asyncpg.PostgresError, match="is raised for a reason"):
        await connection.execute("SELECT fencepost.raise_generation(' ')")


async def test_the_gateway_role_may_not_raise_and_may_do_all_else(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    login = database.replace(database.partition("://")[2].partition("@")[0], "gen_gate:secret")
    await connection.execute("CREATE ROLE gen_gate LOGIN PASSWORD 'secret'; CREATE TABLE t (id int PRIMARY KEY)")
    await protect(connection, "t")
    try:
        made = await run("migrate", "--gateway-role", "gen_gate", "--database-url", database)
        assert made.exit_code == 0, made.output
        assert (await run("generation", "--database-url", login)).exit_code == 0
        refused = await run("generation", "--database-url", login, "raise", "--reason", "mine")
        assert (refused.exit_code, "permission denied" in refused.output) == (1, True), refused.output
        await connection.execute("REVOKE EXECUTE ON FUNCTION fencepost.origin(bigint, uuid) FROM gen_gate")
        with pytest.raises(StartupError, match="fencepost migrate --gateway-role"):
            async with in_process(login):
                pass
        found = (await run("doctor", "--database-url", login)).output
        assert "ERROR    privileges: the role gen_gate lacks functions of our schema: run `fencepost migrate" in found
        assert "WARNING  t: the role gen_gate lacks SELECT, INSERT, UPDATE, DELETE on the table" in found
        await connection.execute("GRANT EXECUTE ON FUNCTION fencepost.origin(bigint, uuid) TO gen_gate")
        async with in_process(login) as http:
            assert (await http.get("/readyz")).status_code == 200
            metrics = (await http.get("/metrics")).text
            assert "fencepost_origin_accepted 1.0" in metrics
            assert 'fencepost_records_bytes{what="marks"}' in metrics
    finally:
        await connection.execute("DROP OWNED BY gen_gate; DROP ROLE gen_gate")


async def test_another_origin_is_refused_at_the_next_connection_and_reported_once(
    connect: Connect, database: str
) -> None:
    """A restored dump, for example: what is stored names another system."""
    connection = await owner(connect)
    answer: list[Any] = []
    await connection.execute("UPDATE fencepost.generations SET system_identifier = 1")
    db = await Database.open(database, Limits(pool_size=2), answer.append)
    try:
        for _ in range(3):
            with pytest.raises(QuarantinedError, match="another cluster, with a copy of the data") as refusal:
                async with db.for_writing():
                    pass
            known = refusal.value.members["known"]
            assert isinstance(known, dict)
            assert (known["generation"], known["system_identifier"], known["timeline"]) == ("0", "1", 1)
        async with db.connection() as reading:
            assert await reading.fetchval("SELECT 1") == 1
        raised = await upkeep.raise_generation(connection, "restored on purpose")
        for _ in range(3):
            async with db.for_writing() as writing:
                assert await writing.fetchval("SELECT 1") == 1
    finally:
        await db.close()
    assert [(standing.accepted, standing.generation) for standing in answer] == [(False, 0), (True, raised)]


async def test_a_source_whose_tokens_are_drawn_here_rises_with_the_generation(connect: Connect) -> None:
    """By its gap as well: two histories would otherwise raise such a source to one number."""
    connection = await owner(connect)
    await sources.register(connection, "ours", "advisory", "database", verifies=False)
    await sources.raise_source(connection, "ours", "it is ahead by two", 1 << 48)
    before = await connection.fetchval("SELECT generation FROM fencepost.source_bounds('ours')")
    raised = await upkeep.raise_generation(connection, "a drill")
    assert await connection.fetchval("SELECT generation FROM fencepost.source_bounds('ours')") == before + raised


async def test_moments_are_left_while_something_is_written_and_tell_copies_apart(connect: Connect) -> None:
    db = await connect()

    async def left() -> int:
        await db.execute("SELECT fencepost.leave_moment()")
        return int(await db.fetchval("SELECT count(*) FROM fencepost.moments"))

    async def due() -> bool:
        return bool(await db.fetchval("SELECT due FROM fencepost.origin()"))

    async def forgot(number: int, nonce: str) -> bool:
        return bool(await db.fetchval("SELECT forgot FROM fencepost.origin($1, CAST($2 AS uuid))", number, nonce))

    assert await left() == 1
    assert (await due(), await left()) == (False, 1), "a moment is no reason for the next one, nor is a read"
    await db.execute("CREATE TABLE written (n int)")
    await eventually(due, what="half a second")
    assert await left() == 2
    (first, _), (second, nonce) = await db.fetch("SELECT number, nonce::text FROM fencepost.moments ORDER BY number")
    none = "00000000-0000-0000-0000-000000000000"
    assert [await forgot(*met) for met in ((second, nonce), (second, none), (second + 1, nonce), (first, none))] == [
        False,
        True,
        True,
        True,
    ]
    await db.execute("DELETE FROM fencepost.moments WHERE number = $1", first)
    assert not await forgot(first, none), "it is older than all that are kept"
    await db.execute("DELETE FROM fencepost.moments")
    assert await forgot(first, none), "a copy from before the first one has none"


async def test_no_generation_at_all_is_refused(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    await connection.execute("DELETE FROM fencepost.generations")
    async with in_process(database) as http:
        assert "fencepost.generations is empty" in (await http.get("/readyz")).json()["origin"]


async def test_doctor_finds_another_origin_and_raising_mends_it(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    healthy = await run("doctor", "--database-url", database)
    assert healthy.exit_code == 0, healthy.output
    assert "origin: generation 0: system" in healthy.output
    assert "no synchronous standby; without one a promoted standby forgets" in healthy.output
    for harm, message in (
        ("ALTER SEQUENCE fencepost.tokens MINVALUE 7 START 7 RESTART 7", "tokens up to 6 are refused"),
        ("UPDATE fencepost.generations SET timeline = 99", "this timeline is older"),
        ("UPDATE fencepost.generations SET system_identifier = 1", "this is another cluster"),
    ):
        await connection.execute(harm)
        found = await run("doctor", "--database-url", database)
        assert (found.exit_code, message in found.output) == (1, True), found.output
        assert "fencepost generation raise --reason" in found.output
        raised = await run("generation", "--database-url", database, "raise", "--reason", "doctor says so")
        assert raised.exit_code == 0, raised.output
        healed = await run("doctor", "--database-url", database)
        assert healed.exit_code == 0, healed.output


async def test_doctor_warns_of_commits_that_are_not_waited_for(connect: Connect, database: str) -> None:
    connection = await owner(connect)
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    found = await run("doctor", "--database-url", database)
    assert "WARNING  replication: database" in found.output
    assert "sets synchronous_commit=off" in found.output


async def test_tables_that_were_protected_by_an_older_version_are_named(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    await mutate(race, "{stem}_upd", "fencepost.oldest()", "0")
    assert await upkeep.lagging_tables(race.observer) == ["orders"]
    done = await run("generation", "--database-url", database, "raise", "--reason", "a drill")
    assert "WARNING: orders: protected by an older version" in done.output
    doctor = await run("doctor", "--database-url", database)
    assert "fencepost protect orders" in doctor.output
    await protect(race.observer, "orders")
    assert await upkeep.lagging_tables(race.observer) == []


async def test_a_deadlock_in_each_try_is_reported_and_nothing_changes(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    await race.observer.execute(
        """
        CREATE SEQUENCE public.tries;
        CREATE FUNCTION public.in_the_way() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          PERFORM nextval('public.tries');
          RAISE EXCEPTION USING ERRCODE = '40P01', MESSAGE = 'scripted';
        END $$;
        CREATE TRIGGER in_the_way BEFORE INSERT ON fencepost.generations EXECUTE FUNCTION public.in_the_way()
        """
    )
    raised = await run("generation", "--database-url", database, "raise", "--reason", "a drill")
    assert (raised.exit_code, await race.observer.fetchval("SELECT last_value FROM public.tries")) == (1, upkeep.TRIES)
    assert "waited for locks of each other in each of 5 tries (deadlock detected, 40P01)" in raised.output
    assert "nothing was changed: run it again" in raised.output
    assert len(await upkeep.history(race.observer)) == 1


async def test_readiness_shows_a_generation_that_was_raised_while_connections_were_open(database: str) -> None:
    async with in_process(database) as http:
        assert (await http.get("/readyz")).json()["origin"] == "accepted: generation 0"
        connection = await asyncpg.connect(database)
        try:
            raised = await upkeep.raise_generation(connection, "on purpose")
        finally:
            await connection.close()
        assert (await http.get("/readyz")).json()["origin"] == f"accepted: generation {raised}"


async def test_when_a_newer_generation_is_met_all_connections_are_made_anew(database: str, connect: Connect) -> None:
    """Those of before may lead to a former primary, whose rows would still be read."""
    db = await Database.open(database, Limits(pool_size=1))
    try:
        async with db.connection() as before:
            pid = before.get_server_pid()
        assert (await db.origin_status()).accepted
        async with db.connection() as same:
            assert same.get_server_pid() == pid
        await upkeep.raise_generation(await connect(), "on purpose")
        assert (await db.origin_status()).accepted
        async with db.connection() as anew:
            assert anew.get_server_pid() != pid
    finally:
        await db.close()
