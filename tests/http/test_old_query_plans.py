"""Triggers of the user's own in PL/pgSQL keep plans in each session: a column's new type must not be the end of it."""

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection

from fencepost.server.ops.protect import protect

TABLE = """
SET search_path = public;
CREATE TABLE t (id int PRIMARY KEY, v int, w text);
CREATE TABLE seen (what text);
CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO seen VALUES ('v is ' || NEW.v); RETURN NEW; END $$;
CREATE TRIGGER theirs BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION theirs();
"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLE)
    await protect(connection, "t")
    return connection


@pytest.fixture
async def gateway(owner: Connection, database: str) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - makes it
    async with in_process(database) as client:
        yield client


WRITES: tuple[tuple[str, str, object], ...] = (
    ("PATCH", "data/t/1", {}),
    ("PATCH", "data/t?id=eq.1", {}),
    ("PUT", "data/t/1", {}),
    ("PUT", "data/t/2", {}),
    ("POST", "data/t", {"id": 3}),
    ("POST", "claims", {"resource": "t/1"}),
    ("POST", "leases", {"lock": "l", "owner": "me", "ttl_ms": 10_000, "claim": ["t/1"]}),
)


async def test_every_write_and_claim_goes_on(gateway: httpx.AsyncClient, owner: Connection) -> None:
    made = await gateway.post("/v1/data/t", json={"id": 1, "v": 1}, headers={"X-Fence-Token": "1"})
    assert made.status_code == 201, made.text
    await owner.execute("SELECT setval('fencepost.tokens', 100)")
    for token, (method, path, body) in enumerate(WRITES, 2):
        await owner.execute(f"ALTER TABLE t ALTER COLUMN v TYPE {('int USING NULL', 'text')[token % 2 == 0]}")
        headers = {} if path == "leases" else {"X-Fence-Token": str(token)}
        answer = await gateway.request(method, f"/v1/{path}", json=body, headers=headers)
        assert answer.is_success, answer.text


async def test_a_trigger_that_raises_the_same_itself_is_reported(gateway: httpx.AsyncClient, owner: Connection) -> None:
    await owner.execute(
        "CREATE OR REPLACE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('public.tries');"
        " RAISE EXCEPTION 'type of parameter 1 (uuid) does not match that when preparing the plan (text)'"
        " USING ERRCODE = '42804'; END $$; CREATE SEQUENCE tries"
    )
    answer = await gateway.post("/v1/data/t", json={"id": 1, "v": 1}, headers={"X-Fence-Token": "1"})
    assert (answer.status_code, answer.json()["code"]) == (400, "42804")
    assert await owner.fetchval("SELECT last_value FROM tries") == 1, "it ran again"
