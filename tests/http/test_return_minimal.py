"""`Prefer: return=minimal` reads what a write needs and no more: who may see key and mark only can write.

The gateway's role may SELECT key, mark and (in a table with a scope) the scope's column, and UPDATE one column.
"""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from click.testing import CliRunner
from tests.http.conftest import StartGateway
from tests.support.asking import Api, code

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect

MINIMAL = "return=minimal"

SQL = """
SET search_path = public;
CREATE TABLE tasks (
  id int PRIMARY KEY, status text, secret text NOT NULL DEFAULT 'hidden', room int NOT NULL DEFAULT 1
);
CREATE TABLE notes (LIKE tasks INCLUDING ALL);
CREATE TABLE desks (LIKE tasks INCLUDING ALL);
CREATE TABLE chairs (LIKE tasks INCLUDING ALL);
CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON chairs FOR EACH ROW EXECUTE FUNCTION same();
INSERT INTO tasks (id) SELECT generate_series(1, 9);
INSERT INTO notes (id) SELECT generate_series(1, 9);
INSERT INTO desks (id) SELECT generate_series(1, 9);
INSERT INTO chairs (id) SELECT generate_series(1, 9);
"""
"""Rows with marks, rows that share one, and rows whose writes share no transaction, since a trigger runs."""
GRANTS = """
GRANT DELETE ON public.tasks, public.notes, public.chairs, public.desks TO minimalist;
GRANT SELECT (id, room, last_fence_token), INSERT (id, status, room, last_fence_token),
  UPDATE (status, last_fence_token) ON public.tasks, public.notes, public.chairs TO minimalist;
GRANT SELECT (id, room), INSERT (id, status, room), UPDATE (status) ON public.desks TO minimalist;
"""


@pytest.fixture
async def owner(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    await connection.execute(SQL)
    for table in ("tasks", "notes", "chairs"):
        await protect(connection, table)
    await protect(connection, "desks", scope="room/{room}")
    await connection.execute("CREATE ROLE minimalist LOGIN PASSWORD 'secret'")
    try:
        yield connection
    finally:
        await connection.execute("DROP OWNED BY minimalist; DROP ROLE minimalist")
        await connection.close()


@pytest.fixture
async def api(owner: asyncpg.Connection, database: str, start_gateway: StartGateway) -> AsyncIterator[Api]:
    command = ["migrate", "--gateway-role", "minimalist", "--database-url", database]
    migrated = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert migrated.exit_code == 0, migrated.output
    await owner.execute(GRANTS)
    owners = database.partition("://")[2].partition("@")[0]
    async with Api.open(await start_gateway(database.replace(owners, "minimalist:secret"))) as api:
        yield api


async def test_what_is_not_shown_is_not_read(api: Api, owner: asyncpg.Connection) -> None:
    for table, key in (("tasks", None), ("notes", "a-key"), ("chairs", None), ("desks", "other-key")):
        await only_minimal(api, table, key)
        rows = await owner.fetch(f"SELECT id, status FROM public.{table} ORDER BY id")
        written = {1, 2, 3, 4, 11, 12, 13}
        assert [tuple(row) for row in rows] == [(n, "paid" if n in written else None) for n in sorted({8, 9} | written)]


async def only_minimal(api: Api, table: str, key: str | None) -> None:
    writes: list[tuple[str, str, object, int]] = [
        ("PATCH", "1", {"status": "paid"}, 204),
        ("PATCH", "?id=eq.2", {"status": "paid"}, 204),
        ("PATCH", "", [{"id": 3, "status": "paid"}, {"id": 4, "status": "paid"}], 204),
        ("POST", "", {"id": 11, "status": "paid", "room": 1}, 201),
        ("POST", "", [{"id": 12, "status": "paid", "room": 1}, {"id": 13, "status": "paid", "room": 1}], 201),
        ("DELETE", "5", None, 204),
        ("DELETE", "?id=in.(6,7)", None, 204),
    ]
    for number, (method, path, body, status) in enumerate(writes, 1):
        where = f"data/{table}{'' if path.startswith('?') or not path else '/'}{path}"
        headers = {} if key is None else {"Idempotency-Key": f"{key}-{number}"}
        shown = await api.ask(method, where, body, token=number, prefer="return=representation", headers=headers)
        assert code(shown) == (403, "42501"), (method, path)
        done = await api.ask(method, where, body, token=number, prefer=MINIMAL, headers=headers)
        assert done.status_code == status, (method, path, done.text)
        assert done.content == b""
