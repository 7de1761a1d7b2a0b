"""Generations of the database and of token sources (R19), and the pruning of marks."""

import asyncio
import re
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.races.test_generations import Isolation
from tests.races.test_pruning import absent
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, connection_to
from tests.support.lease_racing import MINUTE, step_back
from tests.support.racing import ISSUED, WITHOUT_FLOORS, mutate, open_race, outcome, owner
from tests.support.use_cases import open_gateway

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import sources, upkeep
from fencepost.server.postgres import sources as source_leases
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import QuarantinedError
from fencepost.server.postgres.leases import LockRequest, hash_secret
from fencepost.server.postgres.sources import GrantRecord
from fencepost.server.postgres.upkeep import Pruner
from fencepost.server.startup import StartupError
from fencepost.testing.servers.processes import eventually

# Generations (R19): the command, doctor, and a gateway that meets another origin.


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


async def test_another_origin_is_refused_at_the_next_connection_and_told_once(connect: Connect, database: str) -> None:
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
    await owner(connect, "DELETE FROM fencepost.generations")
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
        async with connection_to(database) as connection:
            raised = await upkeep.raise_generation(connection, "on purpose")
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


# Generations of a lock service's tokens (R12): scopes, and leases whose clock steps back.

SOURCE = "redis"
ITEMS = "CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int NOT NULL DEFAULT 0)"
ENTER = "SELECT refused_by FROM fencepost.enter('account', ARRAY['account/1'], 40)"
ENTER_EACH = (
    "SELECT verdict FROM fencepost.enter_each('account', ARRAY['account/1'], ARRAY[40::bigint],"
    " 'public.items'::regclass, 'account/{account}')"
)


async def scoped(connect: Connect) -> asyncpg.Connection:
    """Make a table whose rows have the mark of their scope, with one row."""
    owner = await connect()
    await owner.execute("SET search_path = public")
    await sources.register(owner, SOURCE, "redis", "source", verifies=True)
    await sources.record_verified(owner, SOURCE, 1000)
    await owner.execute(ITEMS)
    await protect(owner, "items", source=SOURCE, scope="account/{account}")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '30'; INSERT INTO items VALUES (1, 1); COMMIT")
    return owner


@pytest.mark.parametrize(
    ("way", "isolation"),
    [("enter", "read_committed"), ("enter", "serializable"), *((way, "repeatable_read") for way in ("update", "each"))],
)
async def test_a_scope_is_not_entered_under_a_token_that_was_voided_since_the_snapshot(
    connect: Connect, isolation: Isolation, way: str
) -> None:
    owner, writer = await scoped(connect), await connect()
    transaction = writer.transaction(isolation=isolation)
    await transaction.start()
    await writer.execute("SELECT FROM public.items")
    await sources.raise_source(owner, SOURCE, "test")
    if way == "update":
        await writer.execute("SET LOCAL fencepost.token = '40'")
        assert await outcome(writer.execute("UPDATE public.items SET n = 1")) == "FP409"
    elif way == "enter":
        assert await outcome(writer.fetchval(ENTER)) == "FP409"
    else:
        assert await writer.fetchval(ENTER_EACH) == "unclear"
    await transaction.rollback()
    assert await owner.fetchval("SELECT n FROM items") == 0


ZK = "zk"


@pytest.fixture
async def db(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await sources.register(connection, ZK, "zookeeper", "source", verifies=True)
    return connection


async def granted(db: asyncpg.Connection, lock: str, number: int, secret: str = "secret") -> int:
    before = await sources.state(db, ZK, lock)
    wanted = LockRequest((lock,), secret, "worker", MINUTE)
    verdict, lease = await source_leases.record_grant(db, ZK, wanted, GrantRecord("handle", (number,), before, 0.0), 1)
    assert verdict == "granted"
    assert lease is not None
    return lease.lease_id


async def left(db: asyncpg.Connection, lease_id: int) -> float:
    """Seconds until the lease is over, by its row."""
    seconds: float = await db.fetchval(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM fencepost.source_leases"
        " WHERE lease_id = $1",
        lease_id,
    )
    return seconds


async def test_a_lease_never_shows_more_than_its_ttl(db: asyncpg.Connection) -> None:
    lease_id = await granted(db, "x", 7)
    await step_back(db)
    lease = await source_leases.lease(db, ZK, lease_id, None)
    assert lease is not None
    assert 0 < lease.remaining_ms <= MINUTE
    [state] = await source_leases.lock_states(db, ZK, None, None, 10)
    assert 0 < (state.remaining_ms or 0) <= MINUTE
    secret = hash_secret("secret")
    _, found = await source_leases.find_by_secret(db, ZK, "x", secret)
    assert found is not None
    assert 0 < found.remaining_ms <= MINUTE, "with which its hold is renewed"
    for shown in (lease.expires_at, state.expires_at, found.expires_at):
        assert await db.fetchval("SELECT $1::text::timestamptz < clock_timestamp() + interval '61 s'", str(shown))
    assert await left(db, lease_id) > MINUTE / 1000


async def test_the_watch_over_holds_counts_its_leases_anew(db: asyncpg.Connection) -> None:
    """Else the hold of a holder that is dead would stay for as long as the step was."""
    mine, other = await granted(db, "x", 7), await granted(db, "y", 8, "another")
    await step_back(db)
    due = await source_leases.due_in(db, [mine])
    assert 50_000 < due[mine] <= MINUTE
    assert 50 < await left(db, mine) <= MINUTE / 1000
    assert await left(db, other) > MINUTE / 1000


async def test_sweeping_counts_all_leases_anew_and_waits_for_none(db: asyncpg.Connection, connect: Connect) -> None:
    free, busy = await granted(db, "x", 7), await granted(db, "y", 8, "another")
    await step_back(db)
    writer = await connect()
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("SELECT FROM fencepost.source_leases WHERE lease_id = $1 FOR UPDATE", busy)
    assert await source_leases.forget(db, 3600, 100) == 0
    await transaction.rollback()
    assert 50 < await left(db, free) <= MINUTE / 1000
    assert await left(db, busy) > MINUTE / 1000
    assert await source_leases.forget(db, 3600, 100) == 0
    assert 50 < await left(db, busy) <= MINUTE / 1000


# Pruning of marks (R6): the pass that a gateway makes, and the floors of scopes.


async def test_batches_walk_over_all_marks_of_all_tables(connect: Connect) -> None:
    connection = await owner(connect)
    for name in ("a", "a/b", "b", "c"):
        await connection.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY)')
        await protect(connection, name, source="external" if name == "b" else "builtin")
    await connection.execute("SELECT setval('fencepost.tokens', 1000)")
    await connection.execute(
        "SELECT fencepost.raise_mark(fencepost.enc(t) || '/' || n, 100 + n, 'strict', true)"
        " FROM unnest(ARRAY['a', 'a/b', 'b', 'c']) t, generate_series(1, 7) n"
    )
    until = await upkeep.horizon(connection)
    position: str | None = ""
    pruned = []
    while position is not None:
        batch = await upkeep.prune_step(connection, until, 0, position, 3)
        pruned.append(batch.pruned)
        position = batch.reached
    assert (sum(pruned), max(pruned)) == (21, 3)
    left = await connection.fetch("SELECT DISTINCT split_part(resource, '/', 1) FROM fencepost.marks")
    assert [row[0] for row in left] == ["b"]
    floors = await connection.fetch("SELECT name, floor FROM fencepost.floors ORDER BY name")
    assert [tuple(row) for row in floors] == [("a", 107), ("a/b", 107), ("b", 0), ("c", 107)]


async def test_a_gateway_prunes_on_its_second_pass_and_goes_on(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    async with open_gateway(database) as gateway:
        pruner = Pruner(gateway.database)
        await absent(race, "k", 50)
        assert await pruner.run(0) == 0, "the first pass only asks for the horizon"
        assert await pruner.run(0) == 1
        assert await pruner.run(0) == 0
        await absent(race, "k", 60)
        assert await pruner.run(3600) == 0
        assert await pruner.run(0) == 1


async def pruned_scopes(connect: Connect) -> Connection:
    """Register a table of the scope account/…; its triggers do not matter here."""
    connection = await owner(connect, "CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL)")
    await connection.execute(
        "INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions, scope)"
        " VALUES ('items', 'items', 'strict', 'builtin', '{id}', 'items', 'account/{account_id}')"
    )
    await connection.execute("INSERT INTO fencepost.floors (name) VALUES ('items'), ('account')")
    await connection.execute("SELECT setval('fencepost.tokens', $1)", ISSUED)
    return connection


async def enter(connection: Connection, account: int, token: int) -> int | str | None:
    """Enter a scope as a write does; None."""
    transaction = connection.transaction()
    await transaction.start()
    refused: int | str | None = await outcome(
        connection.fetchval(
            "SELECT refused_by FROM fencepost.enter('account', ARRAY[$1], $2)", f"account/{account}", token
        )
    )
    await (transaction.commit() if refused is None else transaction.rollback())
    return refused


async def test_a_pruned_scope_refuses_older_holders(connect: Connect) -> None:
    connection = await pruned_scopes(connect)
    assert await enter(connection, 42, 50) is None
    until = await upkeep.horizon(connection)
    assert (await upkeep.prune_step(connection, until, 0, "")).pruned == 1
    assert await connection.fetchval("SELECT count(*) FROM fencepost.marks") == 0
    assert await enter(connection, 42, 40) == 50
    assert await enter(connection, 43, 50) == 50, "the first touch of another scope, below the floor"
    assert await enter(connection, 42, 51) is None


async def test_a_raised_generation_voids_tokens_for_scopes(connect: Connect) -> None:
    connection = await pruned_scopes(connect)
    assert await enter(connection, 42, 50) is None
    first = await upkeep.raise_generation(connection, "test") << 48
    assert [await enter(connection, account, 60) for account in (42, 43)] == [first - 1] * 2
    await connection.execute(WITHOUT_FLOORS)  # and without the floor
    assert [await enter(connection, account, 60) for account in (42, 43)] == ["FP409"] * 2
    token = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    assert await enter(connection, 42, token) is None
