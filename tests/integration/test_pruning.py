"""Pruning of marks (R6): the pass that a gateway makes, and the floors of scopes."""

from tests.races.test_pruning import absent
from tests.support.interleave import Connect, Connection
from tests.support.racing import (
    ISSUED,
    WITHOUT_FLOORS,
    open_race,
    outcome,
    owner,
)
from tests.support.use_cases import open_gateway

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.upkeep import Pruner


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


async def scoped(connect: Connect) -> Connection:
    """Register a table of the scope account/…; its triggers do not matter here."""
    connection = await owner(connect)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL)")
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
    connection = await scoped(connect)
    assert await enter(connection, 42, 50) is None
    until = await upkeep.horizon(connection)
    assert (await upkeep.prune_step(connection, until, 0, "")).pruned == 1
    assert await connection.fetchval("SELECT count(*) FROM fencepost.marks") == 0
    assert await enter(connection, 42, 40) == 50
    assert await enter(connection, 43, 50) == 50, "the first touch of another scope, below the floor"
    assert await enter(connection, 42, 51) is None


async def test_a_raised_generation_voids_tokens_for_scopes(connect: Connect) -> None:
    connection = await scoped(connect)
    assert await enter(connection, 42, 50) is None
    first = await upkeep.raise_generation(connection, "test") << 48
    assert [await enter(connection, account, 60) for account in (42, 43)] == [first - 1] * 2
    await connection.execute(WITHOUT_FLOORS)  # and without the floor
    assert [await enter(connection, account, 60) for account in (42, 43)] == ["FP409"] * 2
    token = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    assert await enter(connection, 42, token) is None
