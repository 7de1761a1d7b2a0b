"""Unknown outcomes where there is a standby (R15, R19): commits that were not waited for, a promotion in between."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import httpx
import pytest
from tests.robustness.test_failover import (
    acquire,
    by_link,
    code,
    holder,
    of_standby,
    patch,
    put,
    raised,
    read,
    shop,
    sql,
)
from tests.support.gateways import in_process
from tests.support.interleave import Connection
from tests.support.violations import promised

from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError
from fencepost.testing.servers.postgres import Pair, in_database
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("failovers")


KEY = {"Idempotency-Key": "k1"}


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'"


async def waiting_for_the_standby(db: Connection, beside: Collection[int] = ()) -> int:
    """The pid of the gateway's backend that waits for the standby, and is none of those that waited before."""

    async def waits() -> int | None:
        return next((pid for (pid,) in await db.fetch(WAITING) if pid not in beside), None)

    return await eventually(waits, what="a commit that waits for the standby")


async def cancel_until_done(db: Connection, write: asyncio.Task[httpx.Response]) -> None:
    """Cancel the waits of all of the gateway's backends, until the write is answered: another one than the write's may
    wait, too, for what the gateway does beside.
    """

    async def done() -> bool:
        await db.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'"
        )
        return write.done()

    await eventually(done, what="the answer to the write")


async def cancel(db: Connection, beside: Collection[int] = ()) -> None:
    assert await db.fetchval("SELECT pg_cancel_backend($1)", await waiting_for_the_standby(db, beside))


async def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_no_success(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=5)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        await pair.caught_up()
        await pair.synchronous()
        await pair.cut()
        async with sql(in_database(pair.primary.url, "shop")) as db:
            await db.execute("SET synchronous_commit = local")
            write = asyncio.create_task(patch(http, "k", first.tokens[1], "second"))
            await cancel_until_done(db, write)
            answer = await write
            assert code(answer) == (503, "FP009")
            assert answer.json()["known"]["mark"] == str(first.tokens[1])
            assert "standby" in answer.json()["detail"]

            beside = [pid for (pid,) in await db.fetch(WAITING)]
            keyed = asyncio.create_task(keyed_patch(http, first.tokens[2], "third"))
            await cancel(db, beside)
            pid = await waiting_for_the_standby(db, beside)  # its record is there: the answer waits, as the write did
            assert not keyed.done()
            granted = asyncio.create_task(acquire(http, "other", lock="y"))
            await eventually(lambda: two_wait(db, beside), what="a grant that waits too")
            other = await db.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> ALL ($1)", [pid, *beside]
            )
            await db.execute("SELECT pg_cancel_backend($1)", other)
            await eventually(lambda: two_wait(db, beside), what="the grant, found again and waiting")
            await pair.mend()
            answer = await keyed
            assert (answer.status_code, answer.headers["Idempotent-Replayed"]) == (200, "true")
            assert (await granted).status_code in (200, 201)
        await loses_nothing_that_was_acknowledged(pair, http)


@pytest.mark.parametrize(("repeatable", "error"), [(False, OutcomeUnknownError), (True, UnavailableError)])
async def test_the_gateways_own_writes_are_no_success_either(
    bin_dir: Path, *, repeatable: bool, error: type[Exception]
) -> None:
    """Also of those that are done again, and look up what was recorded: it may be lost yet."""
    async with shop(bin_dir) as pair, sql(in_database(pair.primary.url, "shop")) as db:
        await db.execute("SET synchronous_commit = local")
        database = await Database.open(in_database(pair.primary.url, "shop"), Limits(pool_size=1))
        await pair.synchronous()
        await pair.cut()
        work = run_write(
            database.for_writing,
            lambda connection: connection.fetchval("SELECT pg_logical_emit_message(true, 'fencepost', '')"),
            repeatable=repeatable,
        )
        writing = asyncio.create_task(work)
        pid = await eventually(lambda: db.fetchval("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        await db.execute("SELECT pg_cancel_backend($1)", pid)
        with pytest.raises(error, match="standby"):
            await writing
        await database.close()


async def test_the_control_a_replay_that_writes_nothing_does_not_wait_for_the_standby(bin_dir: Path) -> None:
    """What the message in the log is for: without it, a repeat would acknowledge what a promotion may forget."""
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=5)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        await pair.caught_up()
        await pair.synchronous()
        async with sql(in_database(pair.primary.url, "shop")) as db:
            await db.execute("SET synchronous_commit = local")
            definition = await db.fetchval(
                "SELECT pg_get_functiondef('fencepost.idem_begin(text, text, bytea)'::regprocedure)"
            )
            message = "PERFORM pg_logical_emit_message(true, 'fencepost', '');"
            assert message in definition
            await db.execute(definition.replace(message, ""))
            await pair.cut()
            keyed = asyncio.create_task(keyed_patch(http, first.tokens[1], "second"))
            await cancel(db)
            assert (await keyed).status_code == 200
        pair.kill_primary()
        await pair.promote()
        pair.lead_to(pair.standby.url)
        assert await read(http, "k") == "first", "it was acknowledged, and is lost"


async def two_wait(db: Connection, beside: Collection[int]) -> bool:
    return len({pid for (pid,) in await db.fetch(WAITING)} - set(beside)) == 2


async def keyed_patch(http: httpx.AsyncClient, token: int, status: str) -> httpx.Response:
    headers = {"X-Fence-Token": str(token), **KEY}
    return await http.patch("/v1/data/orders/k", json={"status": status}, headers=headers)


async def loses_nothing_that_was_acknowledged(pair: Pair, http: httpx.AsyncClient) -> None:
    pair.kill_primary()
    await pair.promote()
    pair.lead_to(pair.standby.url)
    promised(await read(http, "k") == "third", "an acknowledged write is lost by a promotion")


async def test_what_was_under_way_at_a_promotion_is_unknown_and_not_done_on_the_other_history(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=5)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        assert (await put(http, "j", 1, "first", "jobs")).status_code == 201
        await pair.caught_up()
        async with sql(in_database(pair.primary.url, "shop")) as db:
            blocked = db.transaction()
            await blocked.start()
            await db.execute("LOCK TABLE public.orders, public.jobs IN ACCESS EXCLUSIVE MODE")
            by_hand = asyncio.create_task(patch(http, "j", 2, "second", "jobs"))
            keyed = asyncio.create_task(keyed_patch(http, first.tokens[1], "second"))
            await eventually(lambda: both_wait(db), what="two writes that wait")
            await pair.promote()  # and the old primary lives on
            assert (await raised(of_standby(pair))).exit_code == 0
            pair.lead_to(pair.standby.url)
            answer = await by_hand
            assert (code(answer), answer.json()["known"]) == ((503, "FP009"), None)
            assert code(await keyed) == (409, "FP001"), "before its COMMIT, and so it is judged anew"
            await blocked.rollback()
        promised(await read(http, "k") == "first", "what was refused is there")
        assert (await patch(http, "j", 2, "second", "jobs")).status_code == 200


async def both_wait(db: Connection) -> bool:
    await db.execute("SELECT pg_stat_clear_snapshot()")  # it is in a transaction, which would see the same for ever
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'fencepost'"
    return bool(await db.fetchval(waiting) == 2)
