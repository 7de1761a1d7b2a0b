"""The query plan of the hot path: the keyed UPDATE, as the gateway writes it, finds its row by the primary key's
index.
"""

import json
from typing import Any

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import protected_table

from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements.answers import shown
from fencepost.storage.statements.keyed import Change, update
from fencepost.storage.statements.parameters import OF_KEY, compiled
from fencepost.storage.statements.row_sql import key_match
from fencepost.storage.tables.catalog import ProtectedTable

pytestmark = pytest.mark.versions

ROWS = 100_000

KEYS = {
    "text": ("id text", "'order-' || n", ("order-77777",)),
    "varchar": ("id varchar(40)", "'order-' || n", ("order-77777",)),
    "int": ("id int", "n", ("77777",)),
    "bigint": ("id bigint", "n", ("77777",)),
    "uuid": ("id uuid", "md5(n::text)::uuid", ("0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42",)),
    "numeric": ("id numeric(12, 2)", "n + 0.5", ("77777.50",)),
    "date": ("id date", "date '2000-01-01' + n", ("2026-01-31",)),
    "timestamptz": ("id timestamptz", "timestamptz '2000-01-01' + n * interval '1 min'", ("2000-02-01T00:00:00Z",)),
    "bytea": ("id bytea", "decode(md5(n::text), 'hex')", ("\\x00ff",)),
    "composite": ("a text, b int", "'a' || n % 100, n", ("a77", "77777")),
    "domain": ("id public.code", "'order-' || n", ("order-77777",)),
}


async def table_with(connection: Connection, columns: str, values: str) -> ProtectedTable:
    names = "a, b" if columns.startswith("a ") else "id"
    await connection.execute("CREATE DOMAIN public.code AS text CHECK (VALUE <> '')")
    await connection.execute(
        f"CREATE TABLE public.big ({columns}, status text DEFAULT 'new', PRIMARY KEY ({names}));"
        f"INSERT INTO public.big SELECT {values} FROM generate_series(1, {ROWS}) n;"
    )
    await protect(connection, "big")
    await connection.execute("ANALYZE public.big")
    return await protected_table(connection, "big")


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(each for child in plan.get("Plans", ()) for each in nodes(child))]


async def plan_of(connection: Connection, sql: str, arguments: tuple[object, ...], mode: str) -> list[dict[str, Any]]:
    await connection.execute(f"SET plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE hot AS {sql}")
    literals = ", ".join("'" + str(each).replace("'", "''") + "'" for each in arguments)
    answer = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE hot({literals})")
    await connection.execute("DEALLOCATE hot")
    return nodes(json.loads(answer)[0]["Plan"])


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("kind", KEYS)
async def test_the_keyed_update_uses_the_primary_key(connect: Connect, kind: str, mode: str) -> None:
    connection = await connect()
    columns, values, key = KEYS[kind]
    table = await table_with(connection, columns, values)
    target = shown(table, None, 1000)
    for change, arguments in (
        (Change(("status",), target), (*key, 5, '{"status": "x"}')),
        (Change((), target, named=True), (*key, 5)),
    ):
        plan = await plan_of(connection, update(table, change, "block").sql, arguments, mode)
        scans = [node for node in plan if node.get("Relation Name") == "big" and "Scan" in node["Node Type"]]
        assert [(node["Node Type"], node["Index Name"]) for node in scans] == [("Index Scan", "big_pkey")]
        assert not any(node["Node Type"] == "Seq Scan" for node in plan)
        for name in table.key:
            assert name in scans[0]["Index Cond"]
    by_key = compiled(f"SELECT r.status FROM {table.sql_name} AS r WHERE {key_match(table)}", OF_KEY)
    read = await plan_of(connection, by_key.sql, key, mode)
    assert read[0]["Index Name"] == "big_pkey"
