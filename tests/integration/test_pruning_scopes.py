"""Marks of scopes are pruned like those of keys without a row, and a generation voids tokens for them (R6, R8, R19)."""

from tests.support.interleave import Connect, Connection
from tests.support.racing import ISSUED, WITHOUT_FLOORS, outcome, owner

from fencepost.storage.upkeep import generations, pruning


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
    """Enter a scope as a write does; None: accepted, else the mark or floor that refused, or the SQLSTATE.

    A holder that is refused rolls back.
    """
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
    until = await pruning.horizon(connection)
    assert (await pruning.prune_step(connection, until, 0, "")).pruned == 1
    assert await connection.fetchval("SELECT count(*) FROM fencepost.marks") == 0
    assert await enter(connection, 42, 40) == 50
    assert await enter(connection, 43, 50) == 50, "the first touch of another scope, below the floor"
    assert await enter(connection, 42, 51) is None


async def test_a_raised_generation_voids_tokens_for_scopes(connect: Connect) -> None:
    connection = await scoped(connect)
    assert await enter(connection, 42, 50) is None
    first = await generations.raise_generation(connection, "test") << 48
    assert [await enter(connection, account, 60) for account in (42, 43)] == [first - 1] * 2
    await connection.execute(WITHOUT_FLOORS)  # and without the floor
    assert [await enter(connection, account, 60) for account in (42, 43)] == ["FP409"] * 2
    token = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    assert await enter(connection, 42, token) is None
