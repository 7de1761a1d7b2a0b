"""Scopes over HTTP (R8): one mark for all rows of an account, in two tables."""

from collections.abc import AsyncIterator

import pytest
from tests.http.conftest import Start
from tests.support.asking import Api, code
from tests.support.interleave import Connect, Connection

from fencepost.server.ops.protect import protect

DDL = """
SET search_path = public;
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0);
CREATE TABLE notes (account_id bigint NOT NULL, no int, note text DEFAULT '', PRIMARY KEY (account_id, no));
INSERT INTO items VALUES (1, 42), (2, 42), (3, 7);
INSERT INTO notes VALUES (42, 1, 'a');
"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(DDL)
    for table in ("items", "notes"):
        await protect(connection, table, scope="account/{account_id}")
    return connection


@pytest.fixture
async def api(
    owner: Connection,  # noqa: ARG001 - it makes the tables
    database: str,
    start_gateway: Start,
) -> AsyncIterator[Api]:
    async with Api.open(await start_gateway(database)) as api:
        yield api


async def test_a_write_to_one_row_of_a_scope_makes_older_tokens_stale_for_all_others(api: Api) -> None:
    answer = await api.ask("PATCH", "data/items/1", {"n": 5}, token=36)
    assert (answer.status_code, answer.json()["n"]) == (200, 5)
    assert (answer.headers["x-fence-mark"], answer.headers["x-fence-scope"]) == ("36", "account/42")
    for method, path, body in (
        ("PATCH", "data/items/2", {"n": 6}), ("DELETE", "data/notes/42,1", None),
        ("PUT", "data/notes/42,1", {"note": "b"}), ("POST", "data/items", {"id": 9, "account_id": 42}),
        ("PATCH", "data/items?id=eq.2", {"n": 6}), ("DELETE", "data/items?id=eq.2", None),
        ("PATCH", "data/notes/42,99", {"note": "no such row, and yet it is known whose it would be"}),
    ):  # fmt: skip
        stale = await api.ask(method, path, body, token=35)
        assert code(stale) == (409, "FP001"), (method, path)
        assert (stale.json()["resource"], stale.json()["current_token"]) == ("account/42", "36"), (method, path)
        assert code(await api.ask(method, path, body, token=36)) == (409, "FP002"), (method, path)
    for path, mark in (("data/items/2", "36"), ("data/items?id=eq.2", None)):
        read = await api.ask("GET", path)
        assert (read.headers.get("x-fence-mark"), read.headers.get("x-fence-scope")) == (mark, None), path
    assert code(await api.ask("PATCH", "data/items/99", {"n": 6}, token=35)) == (404, "FP006")
    assert (await api.ask("PATCH", "data/items/3", {"n": 6}, token=35)).status_code == 200


async def test_a_row_cannot_leave_its_scope_nor_be_without_one(api: Api) -> None:
    for method, path, body in (
        ("PATCH", "data/items/1", {"account_id": 7}), ("PATCH", "data/items?id=eq.1", {"account_id": 7}),
        ("PUT", "data/items/1", {"account_id": 7}), ("PUT", "data/items/1", {"n": 1}),
        ("POST", "data/items", {"id": 9}),
        ("POST", "data/items", [{"id": 9, "account_id": 42}, {"id": 10, "account_id": None}]),
    ):  # fmt: skip
        answer = await api.ask(method, path, body, token=90)
        assert code(answer) == (400, "FP016"), (method, path, answer.text)
    assert (await api.ask("PATCH", "data/items/1", {"n": 1}, token=90)).status_code == 200


async def test_a_scope_is_claimed_by_its_name_and_a_row_of_it_is_not(api: Api) -> None:
    answer = await api.ask("POST", "claims", {"resource": "account/042"}, token=60)
    assert answer.json() == {"resource": "account/42", "mark": "60", "row": None}
    assert code(await api.ask("PATCH", "data/items/1", {}, token=59)) == (409, "FP001")
    assert code(await api.ask("POST", "claims", {"resource": "account/42"}, token=59)) == (409, "FP001")
    for name in ("account/42", "items/1"):
        fence = (await api.ask("GET", f"fences?resource={name}")).json()
        assert (fence["resource"], fence["mark"], fence["tables"]) == ("account/42", "60", ["items", "notes"]), name
    row = await api.ask("POST", "claims", {"resource": "items/1"}, token=61)
    assert code(row) == (400, "FP016")
    assert "account/{account_id}" in row.json()["detail"]
    assert code(await api.ask("POST", "claims", {"resource": "account/1,2"}, token=61)) == (400, "FP016")
    assert (await api.ask("POST", "claims", {"resource": "account/x"}, token=61)).status_code == 400


async def test_answers_about_one_scope_name_it_with_its_mark(api: Api) -> None:
    new = {"account_id": 42}
    writes: list[tuple[str, str, object, str | None]] = [
        ("PATCH", "data/items/1", {"n": 1}, "account/42"), ("PUT", "data/items/1", new, "account/42"),
        ("PUT", "data/items/8", new, "account/42"), ("DELETE", "data/items/1", None, "account/42"),
        ("POST", "data/items", {"id": 9, **new}, "account/42"),
        ("POST", "data/items", [{"id": 10, **new}], "account/42"),
        ("POST", "claims", {"resource": "account/42"}, "account/42"),
        ("POST", "data/items", [{"id": 11, **new}, {"id": 12, **new}], None),
        ("PATCH", "data/items?id=eq.2", {"n": 1}, None), ("DELETE", "data/items?id=eq.2", None, None),
    ]  # fmt: skip
    for token, (method, path, body, scope) in enumerate(writes, 50):
        for time in (1, 2):
            answer = await api.ask(method, path, body, token=token, headers={"Idempotency-Key": f"k{token}"})
            assert answer.is_success, answer.text
            assert answer.headers.get("x-fence-scope") == scope, (method, path)
            # An answer that is repeated shows no mark (docs/decisions/0032).
            mark = None if scope is None or time == 2 else str(token)
            assert answer.headers.get("x-fence-mark") == mark, (method, path)


async def test_the_description_names_what_a_scope_asks_for(api: Api) -> None:
    described = (await api.http.get("/openapi.json")).json()
    insert = described["paths"]["/v1/data/items"]["post"]
    assert "Every object gives account_id a value" in insert["description"]
    assert {"X-Fence-Mark", "X-Fence-Scope"} <= insert["responses"]["201"]["headers"].keys()
    changed = described["paths"]["/v1/data/items/{id}"]["patch"]["responses"]["200"]
    assert "X-Fence-Scope" in changed["headers"]
