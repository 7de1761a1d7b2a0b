"""The order of a batch's lines where it is not that of one row: foreign keys, scopes, triggers, queues."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.gateways import in_process

from fencepost.server.ops.protect import protect

SQL = """
CREATE TABLE public.parents (id int PRIMARY KEY, note text);
CREATE TABLE public.children (id int PRIMARY KEY, parent int REFERENCES public.parents);
CREATE TABLE public.tree (id int PRIMARY KEY, above int REFERENCES public.tree, note text);
CREATE TABLE public.entries (id int PRIMARY KEY, account int NOT NULL, note text);
CREATE TABLE public.accounts (account int, id int, note text, PRIMARY KEY (account, id));
CREATE TABLE public.cards (id int PRIMARY KEY, account int, owner int,
  FOREIGN KEY (account, owner) REFERENCES public.accounts);
CREATE TABLE public.traced (id int PRIMARY KEY, last int);
CREATE TABLE public.late (id int PRIMARY KEY, parent int REFERENCES public.parents DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE public.queued (id int PRIMARY KEY, note text);
CREATE FUNCTION public.trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  NEW.last := (SELECT count(*) FROM public.traced); RETURN NEW; END $$;
CREATE TRIGGER trace BEFORE INSERT ON public.traced FOR EACH ROW EXECUTE FUNCTION public.trace();
"""
MANY = 40


@pytest.fixture
async def http(database: str) -> AsyncIterator[httpx.AsyncClient]:
    connection = await asyncpg.connect(database)
    await connection.execute(SQL)
    for table in ("parents", "children", "tree", "traced", "cards", "late"):
        await protect(connection, table)
    for table in ("accounts", "entries"):
        await protect(connection, table, scope="account/{account}")
    await protect(connection, "queued", queue="postgres:default")
    await connection.close()
    async with in_process(database) as client:
        yield client


async def batch(http: httpx.AsyncClient, lines: list[dict[str, Any]], query: str = "") -> list[dict[str, Any]]:
    body = "".join(json.dumps(line) + "\n" for line in lines)
    answer = await http.post(f"/v1/batch{query}", content=body, headers={"Content-Type": "application/x-ndjson"})
    return [json.loads(line) for line in answer.text.splitlines()]


def post(table: str, token: int | None, **row: object) -> dict[str, Any]:
    return {"method": "POST", "path": table, "body": row} | ({} if token is None else {"token": token})


async def test_a_row_follows_the_rows_that_it_refers_to(http: httpx.AsyncClient) -> None:
    # Statements of other columns are in other batches: without the order, they are beside each other.
    lines = [post("tree", 1, id=0)]
    for each in range(1, MANY):
        lines += [
            post("tree", 1, id=-each, above=1 - each, **({"note": "x"} if each % 2 else {})),
            post("parents", 1, id=each),
            post("children", 1, id=-each, parent=each),
            {"method": "DELETE", "path": f"children/{-each}", "token": 2},
            {"method": "DELETE", "path": f"parents/{each}", "token": 2},
        ]
    statuses = [verdict["status"] for verdict in await batch(http, lines)]
    assert statuses == [201] + [201, 201, 201, 204, 204] * (MANY - 1)


async def test_the_lines_of_a_scope_keep_their_order_over_rows_and_tables(http: httpx.AsyncClient) -> None:
    lines: list[dict[str, Any]] = []
    for token in range(1, 5 * MANY, 5):
        lines += [
            post("accounts", token, account=7, id=-token),
            post("entries", token + 1, id=-token, account=7),
            {"claim": "account/7", "token": token + 2},
            {"method": "PATCH", "path": f"accounts/7,{-token}", "token": token + 3, "body": {"note": "a"}},
            {"method": "PATCH", "path": f"entries/{-token}", "token": token + 4, "body": {"note": "b"}},
        ]
    statuses = [verdict["status"] for verdict in await batch(http, lines)]
    assert statuses == [201, 201, 200, 200, 200] * MANY


async def test_what_refers_to_a_table_with_a_scope_follows_it(http: httpx.AsyncClient) -> None:
    lines: list[dict[str, Any]] = []
    for each in range(1, MANY):
        lines += [post("accounts", each, account=7, id=each), post("cards", 1, id=each, account=7, owner=each)]
    assert [verdict["status"] for verdict in await batch(http, lines)] == [201] * len(lines)


async def test_where_others_code_runs_all_lines_of_the_table_are_in_order(http: httpx.AsyncClient) -> None:
    verdicts = await batch(http, [post("traced", 1, id=MANY - each) for each in range(MANY)])
    assert [verdict["body"][0]["last"] for verdict in verdicts] == list(range(MANY))


async def test_a_table_with_a_queue_takes_its_lines_there(http: httpx.AsyncClient) -> None:
    lines = [post("queued", None, id=1, note="a"), post("queued", None, note="no key"), post("queued", 5, id=2)]
    queued, keyless, tokened = await batch(http, lines)
    assert (queued["status"], keyless["status"], tokened["status"]) == (202, 400, 400)
    done = await http.get(f"{queued['location']}?wait=30")
    assert done.json()["state"] == "applied"


async def test_lines_that_land_as_a_whole_may_share_the_token_of_a_scope(http: httpx.AsyncClient) -> None:
    rows = [
        post("accounts", 7, account=7, id=1),
        post("entries", 7, id=1, account=7),
        {"claim": "account/7", "token": 7},
    ]
    assert [verdict["status"] for verdict in await batch(http, rows, "?atomic=true")] == [201, 201, 200]
    (older,) = await batch(
        http, [post("entries", 8, id=2, account=7), post("entries", 7, id=3, account=7)], "?atomic=true"
    )
    assert (older["code"], older["line"]) == ("FP001", 2)
    (child,) = await batch(http, [post("late", 1, id=1, parent=9)], "?atomic=true")
    assert (child["code"], "line" in child) == ("23503", False), "it is checked at COMMIT"
    metrics = (await http.get("/metrics")).text
    assert 'fencepost_operations_total{table="",verb="batch",verdict="23503"} 1.0' in metrics
    (queued,) = await batch(http, [post("parents", 1, id=1), post("queued", None, id=1)], "?atomic=true")
    assert (queued["status"], queued["line"], "queue" in queued["detail"]) == (400, 2, True)
    assert (await http.get("/v1/data/parents")).json() == []
