"""What a table is protected with is stored, and kept by a later `protect` that does not name it."""

import inspect
from typing import Any

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner

from fencepost.server.ops.protect import plan_protect, protect
from fencepost.server.postgres import sources

GIVEN: dict[str, dict[str, Any]] = {
    "rule": {"rule": "epoch"},
    "source": {"source": "builtin"},
    "requires_key": {"requires_key": True},
    "scope": {"scope": "of/{a}"},
    "verify": {"source": "asked", "verify": True},
    "max_token": {"max_token": 5000},
    "max_jump": {"max_jump": 100},
    "queue": {"queue": "postgres:default"},
    "sealed": {"sealed": True},
}
"""A value that is not the default, by the argument; `verify` needs a source that can be asked."""
AT_ONCE = {"above"}
"""Arguments that move tokens once, and are not stored."""


@pytest.fixture
async def db(connect: Connect) -> Connection:
    connection = await owner(connect)
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    await sources.register(connection, "asked", "mock", "source", verifies=True)
    return connection


async def stored(db: Connection) -> str:
    row = await db.fetchval(
        "SELECT to_jsonb(p) - '{relation, protected_at, protected_by}'::text[] FROM fencepost.protected p"
    )
    assert isinstance(row, str)
    return row


def test_every_argument_is_here() -> None:
    arguments = {*inspect.signature(plan_protect).parameters} - {"connection", "table"}
    assert arguments == GIVEN.keys() | AT_ONCE


@pytest.mark.parametrize("argument", GIVEN)
async def test_what_was_given_is_stored_and_kept(db: Connection, argument: str) -> None:
    others = {name: value for name, value in GIVEN[argument].items() if name != argument}
    await protect(db, "t", **others)
    without = await stored(db)
    await protect(db, "t", **GIVEN[argument])
    given = await stored(db)
    assert given != without
    await protect(db, "t")
    assert await stored(db) == given
