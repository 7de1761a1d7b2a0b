"""`protect` is repeated, or undone and done again, while DELETEs wait for the table: each is decided, none is a 500."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, blocks_another_session, start

from fencepost.server.ops.protect import plan_protect, plan_unprotect, protect

TABLE = "CREATE TABLE public.t (a int, b text, PRIMARY KEY (a, b))"
ROWS = "INSERT INTO public.t (a, b, last_fence_token) SELECT n, 'x', 1 FROM generate_series(1, 9) n"


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLE)
    await protect(connection, "t")
    await connection.execute(ROWS)
    return connection


@pytest.fixture
async def gateway(owner: Connection, database: str) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - makes it
    # One connection each: the second DELETE of a session has what PostgreSQL remembers of the first.
    async with in_process(database, pool_size=1, batch_pool_size=1) as client:
        yield client


async def delete(gateway: httpx.AsyncClient, key: str, headers: dict[str, str]) -> httpx.Response:
    keyed = {name: value + key for name, value in headers.items()}
    return await gateway.delete(f"/v1/data/t/{key}", headers={"X-Fence-Token": "5"} | keyed)


async def delete_meanwhile(
    gateway: httpx.AsyncClient, owner: Connection, observer: Connection, statements: list[str], headers: dict[str, str]
) -> None:
    """Run the statements of a plan; while they hold the table's lock, a DELETE begins. It is done afterwards."""
    assert (await delete(gateway, "1,x", headers)).status_code == 204
    for key in ("2,x", "3,x"):
        await owner.execute("BEGIN")
        await owner.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        for statement in statements:
            await owner.execute(statement)
        waiting = asyncio.create_task(delete(gateway, key, headers))
        await blocks_another_session(owner, observer)
        await owner.execute("COMMIT")
        answer = await waiting
        assert answer.status_code == 204, answer.text
        marks = "SELECT last_fence_token FROM fencepost.marks WHERE resource = $1 AND row_absent"
        assert await observer.fetchval(marks, f"t/{key}") == 5, key


@pytest.mark.parametrize(("headers", "shared"), [({}, True), ({"Idempotency-Key": "k"}, True), ({}, False)])
async def test_protect_again_while_a_delete_waits(
    gateway: httpx.AsyncClient, owner: Connection, connect: Connect, *, headers: dict[str, str], shared: bool
) -> None:
    if not shared:  # a trigger of the user's own keeps the writes of the table out of batches
        await owner.execute(
            "CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "CREATE TRIGGER theirs AFTER DELETE ON public.t FOR EACH ROW EXECUTE FUNCTION public.theirs()"
        )
    plan = await plan_protect(owner, "t", None, None)
    await delete_meanwhile(gateway, owner, await connect(), plan.statements, headers)


async def test_a_delete_meets_it_several_times(gateway: httpx.AsyncClient, owner: Connection, connect: Connect) -> None:
    """Each time that it has the table's lock the function that it had found is gone, and then others have the lock."""
    statements = [
        "SET LOCAL search_path = pg_catalog, pg_temp",
        *(await plan_unprotect(owner, "t")).statements,
        *(await plan_protect(owner, "t", None, None)).statements,
    ]
    observer, owners = await connect(), [owner, await connect(), await connect()]
    await owner.execute("BEGIN")
    for statement in statements:
        await owner.execute(statement)
    waiting = asyncio.create_task(delete(gateway, "2,x", {}))
    await blocks_another_session(owner, observer)
    for holder, successor in pairwise(owners):
        await successor.execute("BEGIN")
        lock = successor.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
        queued = await start(observer, lock, successor.get_server_pid())
        await holder.execute("COMMIT")
        await queued
        for statement in statements:
            await successor.execute(statement)
        await blocks_another_session(successor, observer)
        assert not waiting.done()
    await owners[-1].execute("COMMIT")
    answer = await waiting
    assert answer.status_code == 204, answer.text
    mark = "SELECT last_fence_token FROM fencepost.marks WHERE resource = 't/2,x' AND row_absent"
    assert await observer.fetchval(mark) == 5
