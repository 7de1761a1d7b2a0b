"""pg_dump and its restore: what is restored is protected as before, and remembers what was refused."""

import asyncio
import itertools
import os
import subprocess
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.direct_sql.replication import write
from tests.support.interleave import Connect

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.versions

_numbers = itertools.count(1)

TABLES = """
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE hues (hue colour PRIMARY KEY, n int);
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, label text);
CREATE TABLE issued (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE parts (region text, id int, n int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
"""


def dump_and_restore(server: PostgresServer, source: str, target: str, *options: str) -> None:
    command = (
        f'set -o pipefail; pg_dump {" ".join(options)} "{source}" | psql "{target}" -qX -v ON_ERROR_STOP=1 -o /dev/null'
    )
    path = f"{server.bin_dir}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env=os.environ | {"PATH": path}, timeout=2 * PATIENCE)


@pytest.fixture
async def target(postgres: PostgresServer) -> AsyncIterator[str]:
    """Give the URL of an empty database."""
    name = f"restored_{next(_numbers)}"
    server = await asyncpg.connect(postgres.url)
    await server.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    yield in_database(postgres.url, name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


@pytest.mark.parametrize("options", [("--inserts",), ("--no-owner", "--no-privileges")])
async def test_what_is_restored_from_a_dump_refuses_what_was_refused(
    connect: Connect, database: str, postgres: PostgresServer, target: str, options: tuple[str, ...]
) -> None:
    owner = await connect()
    await owner.execute(TABLES)
    for table, scope in (("orders", None), ("hues", None), ("items", "account/{account_id}"), ("parts", None)):
        await protect(owner, table, scope=scope)
    await protect(owner, "issued", source="builtin")
    token = await owner.fetchval("SELECT nextval('fencepost.tokens')")
    for number, statement in (
        (36, "INSERT INTO orders VALUES ('row'), ('gone')"),
        (40, "UPDATE orders SET status = 'paid' WHERE order_id = 'row'"),
        (41, "DELETE FROM orders WHERE order_id = 'gone'"),
        (42, "INSERT INTO items VALUES (1, 7, 'a')"),
        (43, "INSERT INTO hues VALUES ('red', 1)"),
        (44, "INSERT INTO parts VALUES ('eu', 1, 1)"),
        (token, "INSERT INTO issued VALUES ('a')"),
    ):
        assert await write(owner, number, statement) == "", statement
    await asyncio.to_thread(dump_and_restore, postgres, database, target, *options)

    restored = await asyncpg.connect(target)
    try:
        for number, statement, refusal in (
            (None, "UPDATE orders SET status = 'x'", "FP428"),
            (39, "UPDATE orders SET status = 'x'", "FP409"),
            (40, "DELETE FROM orders", "FP409"),
            (41, "INSERT INTO orders VALUES ('gone')", "FP409"),
            (41, "UPDATE items SET label = 'x'", "FP409"),
            (43, "UPDATE hues SET n = 2", "FP409"),
            (44, "UPDATE parts SET n = 2", "FP409"),
            (45, "TRUNCATE parts_eu", "FP428"),
            (token, "UPDATE issued SET n = 1", "FP409"),
            (token + 1, "UPDATE issued SET n = 1", "FP018"),
            (50, "UPDATE orders SET status = 'new'", ""),
            (50, "UPDATE items SET label = 'new'", ""),
        ):
            assert await write(restored, number, statement) == refusal, statement
        assert await restored.fetchval("SELECT nextval('fencepost.tokens')") == token + 1
    finally:
        await restored.close()
