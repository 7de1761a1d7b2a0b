"""The query plan of an array PATCH: two look-ups by the primary key's index for each element, to lock and to write."""

import json
from typing import Any

import pytest
from tests.integration.test_query_plan import KEYS, plan_of, table_with
from tests.support.interleave import Connect, Connection
from tests.support.racing import protected_table

from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements.answers import shown
from fencepost.storage.statements.asking import question_of_elements
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.many import by_array
from fencepost.storage.tables.catalog import ProtectedTable, Table

pytestmark = pytest.mark.versions

MODES = ["force_custom_plan", "force_generic_plan"]


def change_of(table: Table, *columns: str) -> Change:
    return Change(columns, shown(table, None, 1000))


def looked_up(plan: list[dict[str, Any]], name: str) -> None:
    """Assert that the table is read by its key only."""
    scans = [node for node in plan if node.get("Relation Name") == name and "Scan" in node["Node Type"]]
    assert [(node["Node Type"], node["Index Name"]) for node in scans] == [("Index Scan", f"{name}_pkey")] * 2
    assert not any(node["Node Type"] in ("Seq Scan", "Hash Join", "Merge Join") for node in plan)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KEYS)
async def test_every_element_is_looked_up_in_the_index(connect: Connect, kind: str, mode: str) -> None:
    connection = await connect()
    columns, values, key = KEYS[kind]
    table = await table_with(connection, columns, values)
    body = json.dumps([dict(zip(table.key, key, strict=True)) | {"status": "x"}])
    sql = by_array(table, change_of(table, "status")).sql
    looked_up(await plan_of(connection, sql, (5, body), mode), "big")


async def scoped_table(connection: Connection) -> ProtectedTable:
    await connection.execute(
        "CREATE TABLE public.items (id int PRIMARY KEY, account_id int NOT NULL, n int);"
        "INSERT INTO public.items SELECT n, n % 1000 FROM generate_series(1, 100000) n"
    )
    await protect(connection, "items", scope="account/{account_id}")
    await connection.execute("ANALYZE public.items")
    return await protected_table(connection, "items")


@pytest.mark.parametrize("mode", MODES)
async def test_so_it_is_in_a_scope(connect: Connect, mode: str) -> None:
    connection = await connect()
    table = await scoped_table(connection)
    sql = by_array(table, change_of(table, "n")).sql
    looked_up(await plan_of(connection, sql, ("{account/42}", '[{"id": 42, "n": 1}]'), mode), "items")


@pytest.mark.parametrize("mode", MODES)
async def test_so_it_is_in_a_table_of_some_thousand_rows(connect: Connect, mode: str) -> None:
    """Where the planner, if it expected 100 elements of any JSON, would rather read the whole table twice."""
    connection = await connect()
    await connection.execute(
        "CREATE TABLE public.small (id text PRIMARY KEY, status text);"
        "INSERT INTO public.small SELECT 'order-' || n, 'new' FROM generate_series(1, 10000) n"
    )
    await protect(connection, "small")
    await connection.execute("ANALYZE public.small")
    table = await protected_table(connection, "small")
    sql = by_array(table, change_of(table, "status")).sql
    looked_up(await plan_of(connection, sql, (5, '[{"id": "order-1", "status": "x"}]'), mode), "small")


@pytest.mark.parametrize("mode", MODES)
async def test_the_question_about_elements_looks_each_up_too(connect: Connect, mode: str) -> None:
    connection = await connect()
    columns, values, key = KEYS["text"]
    table = await table_with(connection, columns, values)
    body = json.dumps([dict(zip(table.key, key, strict=True))])
    plan = await plan_of(connection, question_of_elements(table).sql, (body,), mode)
    scans = [node for node in plan if node.get("Relation Name") == "big"]
    assert [(node["Node Type"], node["Index Name"]) for node in scans] == [("Index Scan", "big_pkey")]
