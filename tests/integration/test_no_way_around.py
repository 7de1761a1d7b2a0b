"""Ways past the fence that are no race: functions for everybody, protection that comes and goes."""

import asyncpg
import httpx
import pytest
from tests.support.asking import code
from tests.support.gateways import in_process
from tests.support.interleave import Connect

from fencepost.server.ops.protect import protect, unprotect

ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)"


async def ask(client: httpx.AsyncClient, method: str, path: str, token: int, body: object = None) -> httpx.Response:
    return await client.request(method, f"/v1/data/{path}", headers={"X-Fence-Token": str(token)}, json=body)


async def test_no_other_role_can_attach_our_trigger_functions_to_a_table(connect: Connect) -> None:
    owner, stranger = await connect(), await connect()
    await owner.execute(ORDERS)
    await protect(owner, "orders")
    stem = await owner.fetchval("SELECT functions FROM fencepost.protected")
    await owner.execute("CREATE ROLE stranger; GRANT SELECT ON orders TO stranger")
    try:
        await stranger.execute(
            "SET SESSION AUTHORIZATION stranger; CREATE TEMP TABLE t (id int, last_fence_token bigint)"
        )
        for part in ("upd", "ins", "insmark", "del"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await stranger.execute(
                    f'CREATE TRIGGER t AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fencepost."{stem}_{part}"()'
                )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute("SELECT fencepost.raise_mark('orders/1', 9223372036854775807, 'strict', true)")
    finally:
        await stranger.close()
        await owner.execute("DROP OWNED BY stranger; DROP ROLE stranger")


async def test_taking_up_marks_lets_the_tables_own_triggers_find_their_names(connect: Connect) -> None:
    owner = await connect()
    await owner.execute(
        ORDERS + "; CREATE TABLE seen (id int);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END $$;"
        "CREATE TRIGGER f BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION f()"
    )
    await protect(owner, "orders")
    await owner.execute("INSERT INTO orders (id, last_fence_token) VALUES (1, 5)")
    await unprotect(owner, "orders")
    await owner.execute("UPDATE orders SET last_fence_token = 0")
    await protect(owner, "orders")
    assert await owner.fetchval("SELECT last_fence_token FROM orders") == 5


async def test_a_key_that_storing_would_cut_is_refused(connect: Connect, database: str) -> None:
    owner = await connect()
    await owner.execute("CREATE TABLE v (id varchar(3) PRIMARY KEY, n int)")
    await protect(owner, "v")
    async with in_process(database) as client:
        assert code(await ask(client, "PUT", "v/ab%20%20%20", 5, {"n": 1})) == (400, "FP016")
        claim = await client.post("/v1/claims", headers={"X-Fence-Token": "5"}, json={"resource": "v/ab   "})
        assert code(claim) == (400, "FP016")
        assert await owner.fetchval("SELECT count(*) FROM fencepost.marks") == 0
        assert (await ask(client, "PUT", "v/ab%20", 5, {"n": 1})).status_code == 201


async def test_one_locked_table_does_not_stop_the_others(connect: Connect, database: str) -> None:
    owner, holder = await connect(), await connect()
    await owner.execute(ORDERS + "; CREATE TABLE locked (id int PRIMARY KEY, n int DEFAULT 5)")
    await protect(owner, "orders")
    await owner.execute("INSERT INTO orders (id, last_fence_token) VALUES (1, 1)")
    await holder.execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
    async with in_process(database, serve_unprotected=True) as client:  # starts although the table is locked
        assert (await client.get("/v1/data/unknown")).status_code == 404
        await owner.execute("ALTER TABLE orders ADD COLUMN extra int")
        assert (await ask(client, "PATCH", "orders/1", 5, {"extra": 3})).status_code == 200
        properties = (await client.get("/openapi.json")).json()["components"]["schemas"]["locked"]["properties"]
        assert set(properties) == {"id", "n"}
    await holder.execute("COMMIT")
