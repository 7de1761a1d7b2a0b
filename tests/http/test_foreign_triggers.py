"""Triggers, rules and cascades of the user's own: an answer that is no success has no effect, whatever they do."""

import httpx
import pytest
from tests.support.asking import code
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection

from fencepost.server.ops.protect import protect

TABLES = """
CREATE TABLE soft (id int PRIMARY KEY, deleted bool NOT NULL DEFAULT false, n int NOT NULL DEFAULT 0);
CREATE TABLE seen (what text);
CREATE TABLE child (id int PRIMARY KEY, soft int NOT NULL REFERENCES soft ON DELETE CASCADE)"""


async def trigger(connection: Connection, event: str, body: str) -> None:
    await connection.execute(
        f"CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;"
        f"CREATE TRIGGER theirs {event} ON soft FOR EACH ROW EXECUTE FUNCTION theirs()"
    )


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLES)
    return connection


@pytest.fixture
async def soft(owner: Connection) -> Connection:
    """Protect the table `soft`, with two rows; gives its owner's connection."""
    await protect(owner, "soft")
    await owner.execute("INSERT INTO soft (id, last_fence_token) VALUES (1, 1), (2, 1)")
    return owner


async def write(client: httpx.AsyncClient, method: str, path: str, token: int, body: object = None) -> httpx.Response:
    return await client.request(method, f"/v1/data/{path}", headers={"X-Fence-Token": str(token)}, json=body)


async def state(owner: Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await owner.fetch("SELECT id, deleted, n, last_fence_token FROM soft ORDER BY id")]


UNTOUCHED = [(1, False, 0, 1), (2, False, 0, 1)]

SUPPRESSED: dict[str, tuple[str, list[tuple[str, str, object]]]] = {
    "BEFORE DELETE": (
        "INSERT INTO seen VALUES ('delete'); UPDATE soft SET deleted = true WHERE id = OLD.id; RETURN NULL;",
        [("DELETE", "soft/1", None), ("DELETE", "soft?id=lt.9", None)],
    ),
    "BEFORE UPDATE": (
        "INSERT INTO seen VALUES ('update'); RETURN NULL;",
        [("PATCH", "soft/1", {"n": 7}), ("PUT", "soft/1", {"n": 7}), ("PATCH", "soft?id=lt.9", {"n": 7})],
    ),
    "BEFORE INSERT": (
        "INSERT INTO seen VALUES ('insert'); IF NEW.id = 4 THEN RETURN NULL; END IF; RETURN NEW;",
        [("POST", "soft", [{"id": 3}, {"id": 4}]), ("POST", "soft", {"id": 4}), ("PUT", "soft/4", {})],
    ),
}


@pytest.mark.parametrize("event", SUPPRESSED)
async def test_a_suppressed_write_leaves_nothing_behind(soft: Connection, database: str, event: str) -> None:
    body_of_trigger, writes = SUPPRESSED[event]
    await trigger(soft, event, body_of_trigger)
    async with in_process(database) as gateway:
        for method, path, body in writes:
            answer = await write(gateway, method, path, 5, body)
            assert code(answer) == (400, "FP403"), (method, path)
            assert "suppressed" in answer.json()["detail"], path
            assert await state(soft) == UNTOUCHED, (method, path)
            assert await soft.fetchval("SELECT count(*) FROM seen") == 0, (method, path)


async def test_a_cascade_into_a_protected_table_is_reported_as_what_it_is(soft: Connection, database: str) -> None:
    await protect(soft, "child")
    await soft.execute("INSERT INTO child (id, soft, last_fence_token) VALUES (7, 1, 1)")
    async with in_process(database) as gateway:
        answer = await write(gateway, "DELETE", "soft/1", 5)
        assert code(answer) == (409, "FP428")
        assert answer.json()["resource"] == "child/7"
        assert await state(soft) == UNTOUCHED


async def test_a_foreign_fp409_is_no_verdict_of_ours(soft: Connection, database: str) -> None:
    await trigger(soft, "BEFORE UPDATE", "RAISE EXCEPTION 'mine' USING ERRCODE = 'FP409';")
    async with in_process(database) as gateway:
        assert code(await write(gateway, "PATCH", "soft/1", 5, {"n": 7})) == (400, "FP409")


async def test_what_is_to_concern_one_row_writes_nothing_when_it_does_not(soft: Connection, database: str) -> None:
    headers = {"X-Fence-Token": "5", "Accept": "application/vnd.pgrst.object+json"}
    async with in_process(database) as gateway:
        for method, path, body in (
            ("PATCH", "soft?id=lt.9", {"n": 7}),
            ("DELETE", "soft?id=lt.9", None),
            ("PATCH", "soft?id=gt.9", {"n": 7}),
            ("POST", "soft", [{"id": 3}, {"id": 4}]),
            ("POST", "soft", []),
        ):
            answer = await gateway.request(method, f"/v1/data/{path}", headers=headers, json=body)
            assert code(answer) == (406, "FP021"), (method, path, body)
            assert await state(soft) == UNTOUCHED, (method, path, body)
        shown = headers | {"Prefer": "return=representation"}
        answer = await gateway.patch("/v1/data/soft?id=eq.1&select=n", headers=shown, json={"n": 7})
        assert (answer.status_code, answer.json()) == (200, {"n": 7})
