"""Failovers and restarts of PostgreSQL (R19), with a real standby."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from click.testing import CliRunner, Result
from tests.robustness.test_cuts import AUDIT, SCHEMA, TABLE, TABLES, Writers, judge
from tests.support.gateways import gateway_process, in_process
from tests.support.interleave import Connection, connection_to
from tests.support.postgres import server_bin_dir
from tests.support.violations import assert_none, promised

from fencepost.cli.main import main
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError
from fencepost.testing.servers.postgres import Pair, in_database, replicated
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, new_directory, remove_directory

pytestmark = pytest.mark.long("failovers")

# Failover with a real primary and a real standby (R19): what a gateway lets through, and what an operator does.

SQL = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE public.jobs (id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
"""


@asynccontextmanager
async def shop(bin_dir: Path) -> AsyncIterator[Pair]:
    """Run a pair with a database `shop` on it: orders takes built-in tokens, jobs those of somewhere else."""
    async with replicated(bin_dir) as pair:
        async with connection_to(pair.primary.url) as connection:
            await connection.execute("CREATE DATABASE shop")
        await upgrade(in_database(pair.primary.url, "shop"))
        async with connection_to(in_database(pair.primary.url, "shop")) as connection:
            await connection.execute(SQL)
            await protect(connection, "orders", source="builtin")
            await protect(connection, "jobs")
        await pair.caught_up()
        yield pair


def by_link(pair: Pair) -> str:
    return in_database(pair.url, "shop")


def of_standby(pair: Pair) -> str:
    return in_database(pair.standby.url, "shop")


@dataclass
class Holder:
    """A holder with a lease of the lock `x`."""

    http: httpx.AsyncClient
    lease_id: str
    secret: str
    tokens: list[int]

    async def mint(self, count: int = 1) -> httpx.Response:
        answer = await self.http.post(f"/v1/leases/{self.lease_id}/tokens", json={"count": count}, headers=self.headers)
        if answer.is_success:
            self.tokens += [int(token) for token in answer.json()["tokens"]]
        return answer

    async def renew(self) -> httpx.Response:
        return await self.http.post(f"/v1/leases/{self.lease_id}/renew", headers=self.headers)

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Lease-Secret": self.secret}


async def acquire(http: httpx.AsyncClient, owner: str, **asked: object) -> httpx.Response:
    return await http.post("/v1/leases", json={"lock": "x", "owner": owner, "ttl_ms": 600_000, **asked})


async def holder(http: httpx.AsyncClient, owner: str, **asked: object) -> Holder:
    answer = await acquire(http, owner, **asked)
    assert answer.status_code == 201, answer.text
    lease = answer.json()
    return Holder(http, lease["lease_id"], lease["secret"], [int(token) for token in lease["tokens"]])


async def patch(http: httpx.AsyncClient, key: str, token: int, status: str, table: str = "orders") -> httpx.Response:
    return await http.patch(f"/v1/data/{table}/{key}", json={"status": status}, headers={"X-Fence-Token": str(token)})


async def put(http: httpx.AsyncClient, key: str, token: int, status: str, table: str = "orders") -> httpx.Response:
    return await http.put(f"/v1/data/{table}/{key}", json={"status": status}, headers={"X-Fence-Token": str(token)})


async def _minted(holder: Holder) -> bool:
    return (await holder.mint()).is_success


async def claim(http: httpx.AsyncClient, resource: str, token: int) -> httpx.Response:
    return await http.post("/v1/claims", json={"resource": resource}, headers={"X-Fence-Token": str(token)})


async def read(http: httpx.AsyncClient, key: str) -> Any:
    """Read a row's status, also right after connections were cut."""

    async def answered() -> httpx.Response | None:
        answer = await http.get(f"/v1/data/orders/{key}")
        return answer if answer.status_code == 200 else None

    return (await eventually(answered, what="a read")).json()["status"]


def code(answer: httpx.Response) -> tuple[int, str]:
    """Give the code of a refusal. For where a refusal is due: a success there is a stale write that was accepted."""
    promised(not answer.is_success, f"{answer.request.method} {answer.request.url} was accepted: {answer.text}")
    return answer.status_code, answer.json()["code"]


async def raised(url: str, *more: str) -> Result:
    arguments = ["generation", "--database-url", url, "raise", "--reason", "a test", *more]
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def first_token(url: str) -> int:
    async with connection_to(url) as connection:
        return int(await connection.fetchval("SELECT fencepost.oldest()"))


async def doctor(pair: Pair) -> str:
    url = in_database(pair.primary.url, "shop")
    return (await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--database-url", url])).output


REFUSED = (503, "FP015")


async def test_a_promoted_standby_that_lost_writes_is_refused_until_an_operator_acts(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        old = await holder(http, "old")
        assert (await put(http, "k", old.tokens[0], "first")).status_code == 201
        assert (await put(http, "j", 7, "seven", "jobs")).status_code == 201
        await pair.caught_up()
        await pair.cut()
        await old.mint(100)
        assert (await patch(http, "k", old.tokens[-2], "acknowledged")).status_code == 200
        pair.kill_primary()
        await pair.promote()
        pair.lead_to(pair.standby.url)

        assert await read(http, "k") == "first", "the acknowledged write is lost"
        async with connection_to(of_standby(pair)) as db:
            # Straight to the triggers, as a gateway would that does not ask for the origin: the tokens repeat, and the
            # old one passes.
            token = old.tokens[-1]
            undone = db.transaction()
            await undone.start()
            while await db.fetchval("SELECT nextval('fencepost.tokens')") < token:
                pass
            wrote = await db.execute(
                "UPDATE public.orders SET status = 'ZOMBIE', last_fence_token = $1 WHERE order_id = 'k'", token
            )
            assert wrote == "UPDATE 1"
            await undone.rollback()

        refusal = await patch(http, "k", old.tokens[-1], "zombie")
        assert code(refusal) == REFUSED
        assert int(refusal.headers["Retry-After"]) > 0
        assert (refusal.json()["found"]["timeline"], refusal.json()["known"]["timeline"]) == (2, 1)
        assert refusal.json()["found"]["system_identifier"] == refusal.json()["known"]["system_identifier"]
        assert "a standby was promoted" in refusal.json()["detail"]
        for answer in (
            await put(http, "new", old.tokens[-1], "zombie"), await claim(http, "orders/k", old.tokens[-1]),
            await put(http, "j", 8, "eight", "jobs"), await acquire(http, "successor"), await old.renew(),
            await old.mint(),
        ):  # fmt: skip
            assert code(answer) == REFUSED
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "refused" in ready.json()["origin"]
        assert "fencepost_origin_accepted 0.0" in (await http.get("/metrics")).text

        raising = await raised(of_standby(pair))
        assert (raising.exit_code, "is the one to write to" in raising.output) == (0, True), raising.output

        for answer in (
            await patch(http, "k", old.tokens[-1], "zombie"), await put(http, "new", old.tokens[-1], "zombie"),
            await claim(http, "orders/k", old.tokens[-1]), await claim(http, "orders/new", old.tokens[-1]),
            await patch(http, "new", old.tokens[-1], "zombie"),
        ):  # fmt: skip
            assert code(answer) == (409, "FP001"), answer.text
        assert (await old.renew()).status_code == 410
        assert (await old.mint()).status_code == 410
        successor = await holder(http, "successor")
        first = await first_token(of_standby(pair))
        assert successor.tokens == [first]
        await successor.mint(5)
        assert (await patch(http, "k", successor.tokens[0], "second")).headers["X-Fence-Mark"] == str(first)
        assert code(await patch(http, "k", successor.tokens[0], "again")) == (409, "FP002")
        assert (await put(http, "new", successor.tokens[1], "second")).status_code == 201
        assert (await put(http, "j", 8, "eight", "jobs")).status_code == 200, "an operator's word for external tokens"
        assert (await http.get("/readyz")).status_code == 200
        assert "fencepost_origin_accepted 1.0" in (await http.get("/metrics")).text


async def test_a_synchronous_standby_loses_nothing_and_still_waits_for_the_operator(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        assert "1 standby is attached: a promoted standby forgets" in await doctor(pair)
        await pair.synchronous()
        assert "ok       replication: synchronous_standby_names is *, 1 of them streaming now" in await doctor(pair)
        old = await holder(http, "old", tokens=20)
        for number, token in enumerate(old.tokens[:-1]):
            assert (await put(http, f"k{number}", token, "acknowledged")).status_code == 201
        pair.kill_primary()  # with nothing waited for
        await pair.promote()
        pair.lead_to(pair.standby.url)
        for number in range(len(old.tokens) - 1):
            promised(await read(http, f"k{number}") == "acknowledged", f"the acknowledged write of k{number} is lost")
        assert code(await patch(http, "k0", old.tokens[-1], "zombie")) == REFUSED
        assert (await raised(of_standby(pair))).exit_code == 0
        assert code(await patch(http, "k0", old.tokens[-1], "zombie")) == (409, "FP001")
        successor = await holder(http, "successor")
        assert (await patch(http, "k0", successor.tokens[0], "second")).status_code == 200


async def test_a_standby_serves_reads_and_its_connections_follow_its_promotion(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair:
        async with connection_to(in_database(pair.primary.url, "shop")) as db:
            await db.execute("SELECT nextval('fencepost.tokens')")
            await db.execute("INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', 1)")
        await pair.caught_up()
        # Without a consumer: its questions would be the first to meet the promotion.
        async with in_process(of_standby(pair), consume_here=False) as http, connection_to(of_standby(pair)) as look:
            assert await read(http, "k") == "new"
            for answer in (
                await patch(http, "k", 2, "written"), await acquire(http, "eager"), await claim(http, "orders/k", 2),
            ):  # fmt: skip
                assert code(answer) == (503, "FP010")
                assert "is a standby" in answer.json()["detail"]
                assert "Retry-After" in answer.headers
            assert (await http.get("/readyz")).status_code == 503
            refused = await raised(of_standby(pair))
            assert (refused.exit_code, "this server is a standby" in refused.output) == (1, True), refused.output
            before = await pool(look)
            await pair.promote()
            assert code(await patch(http, "k", 2, "written")) == REFUSED
            assert before & await pool(look), "no connection of the standby's time is left: this test shows nothing"
            assert (await raised(of_standby(pair))).exit_code == 0
            assert (await acquire(http, "eager", tokens=2)).status_code == 201
            assert (await patch(http, "k", await first_token(of_standby(pair)), "written")).status_code == 200


async def pool(look: Connection) -> set[int]:
    """The pids of the gateway's connections."""
    rows = await look.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost'")
    return {row["pid"] for row in rows}


async def test_a_former_primary_that_comes_back_is_refused_by_gateways_that_met_its_successor(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        old = await holder(http, "old", tokens=9)
        assert (await put(http, "k", old.tokens[0], "first")).status_code == 201
        await pair.caught_up()
        pair.kill_primary()
        await pair.promote()
        pair.lead_to(pair.standby.url)
        assert (await raised(of_standby(pair))).exit_code == 0
        successor = await eventually(lambda: _holder(http, "successor"), what="a lease of the new generation")
        assert (await patch(http, "k", successor.tokens[0], "second")).status_code == 200

        pair.lead_to(pair.primary_again())
        assert await read(http, "k") == "first", "the former primary, with the state that it had"
        refusal = await patch(http, "k", old.tokens[1], "split brain")
        assert code(refusal) == REFUSED
        assert "has been raised elsewhere: it is a former primary" in refusal.json()["detail"]
        assert code(await acquire(http, "confused")) == REFUSED
        assert code(await patch(http, "k", old.tokens[1], "split brain")) == REFUSED, "also by the next connection"

        pair.lead_to(pair.standby.url)
        # The first answer may be a 503: its connection was cut.
        await eventually(lambda: _minted(successor), what="a token of the primary")
        third = await patch(http, "k", successor.tokens[-1], "third")
        assert third.status_code == 200, third.text


async def _holder(http: httpx.AsyncClient, owner: str) -> Holder | None:
    answer = await acquire(http, owner)
    if answer.status_code != 201:
        return None
    lease = answer.json()
    return Holder(http, lease["lease_id"], lease["secret"], [int(token) for token in lease["tokens"]])


async def test_connections_to_a_former_primary_that_lives_on_are_dropped_once_the_next_is_met(bin_dir: Path) -> None:
    """Split brain: the link turns while connections to the old primary are open, and it knows nothing of it."""
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http, connection_to(of_standby(pair)) as new:
        first = await holder(http, "first", tokens=20)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        await pair.caught_up()
        await pair.cut()
        await pair.promote()
        assert (await raised(of_standby(pair))).exit_code == 0
        # Before the link turns: who meets all connections in use opens one, and that leads to the new primary.
        assert (await patch(http, "k", first.tokens[1], "still there")).status_code == 200, "no other was met yet"
        pair.lead_to(pair.standby.url, hang_up=False)
        # As many at once as it takes for the pool to open a connection, which leads to the new primary.
        async with connection_to(in_database(pair.primary.url, "shop")) as db:
            blocked = db.transaction()
            await blocked.start()
            await db.execute("LOCK TABLE public.orders IN ACCESS EXCLUSIVE MODE")
            waiting = [asyncio.create_task(patch(http, "k", token, "waits")) for token in first.tokens[2:8]]

            async def met() -> bool:
                """Not only connected to: the gateway has read there which generation it is."""
                origin = (await http.get("/readyz")).json()["origin"]
                return bool(await pool(new)) and origin not in ("accepted: generation 0", "unknown")

            await eventually(met, what="the new primary")
            await blocked.rollback()
            await asyncio.gather(*waiting)
        # All at once, so that each takes another connection: none leads to the former primary any more.
        answers = await asyncio.gather(*(patch(http, "k", token, "split brain") for token in first.tokens[8:]))
        assert {code(answer) for answer in answers} == {(409, "FP001")}
        promised(await read(http, "k") == "first", "what was refused is there")


async def test_a_server_that_crashed_and_came_back_needs_no_operator(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=3)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        pair.kill_primary()
        pair.lead_to(pair.primary_again())
        promised(await read(http, "k") == "first", "an acknowledged write is lost by a crash")
        assert (await patch(http, "k", first.tokens[1], "second")).status_code == 200
        assert (await first.mint()).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


# Unknown outcomes where there is a standby (R15, R19): commits that were not waited for, a promotion in between.

KEY = {"Idempotency-Key": "k1"}


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'"


async def waiting_for_the_standby(db: Connection, beside: Collection[int] = (), at: str = "%") -> int:
    """The pid of the gateway's backend that waits for the standby, and is none of those that waited before. `at`: which
    statement it has come to.
    """

    async def waits() -> int | None:
        return next((pid for (pid,) in await db.fetch(f"{WAITING} AND query LIKE $1", at) if pid not in beside), None)

    return await eventually(waits, what="a commit that waits for the standby")


async def cancel(db: Connection, beside: Collection[int] = (), at: str = "%") -> None:
    assert await db.fetchval("SELECT pg_cancel_backend($1)", await waiting_for_the_standby(db, beside, at))


async def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_no_success(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=5)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        await pair.caught_up()
        await pair.synchronous()
        await pair.cut()
        async with connection_to(in_database(pair.primary.url, "shop")) as db:
            await db.execute("SET synchronous_commit = local")
            write = asyncio.create_task(patch(http, "k", first.tokens[1], "second"))

            # Cancel the waits of all of the gateway's backends, until the write is answered: another one than the
            # write's may wait, too, for what the gateway does beside.
            async def done() -> bool:
                await db.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                    " WHERE wait_event = 'SyncRep' AND application_name = 'fencepost'"
                )
                return write.done()

            await eventually(done, what="the answer to the write")
            answer = await write
            assert code(answer) == (503, "FP009")
            assert answer.json()["known"]["mark"] == str(first.tokens[1])
            assert "standby" in answer.json()["detail"]

            beside = [pid for (pid,) in await db.fetch(WAITING)]
            keyed = asyncio.create_task(keyed_patch(http, first.tokens[2], "third"))
            await cancel(db, beside, "COMMIT%")  # not what the gateway does beside, which is single statements
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
        pair.kill_primary()
        await pair.promote()
        pair.lead_to(pair.standby.url)
        promised(await read(http, "k") == "third", "an acknowledged write is lost by a promotion")


@pytest.mark.parametrize(("repeatable", "error"), [(False, OutcomeUnknownError), (True, UnavailableError)])
async def test_the_gateways_own_writes_are_no_success_either(
    bin_dir: Path, *, repeatable: bool, error: type[Exception]
) -> None:
    """Also of those that are done again, and look up what was recorded: it may be lost yet."""
    async with shop(bin_dir) as pair, connection_to(in_database(pair.primary.url, "shop")) as db:
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
        async with connection_to(in_database(pair.primary.url, "shop")) as db:
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


async def test_what_was_under_way_at_a_promotion_is_unknown_and_not_done_on_the_other_history(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=5)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        assert (await put(http, "j", 1, "first", "jobs")).status_code == 201
        await pair.caught_up()
        async with connection_to(in_database(pair.primary.url, "shop")) as db:
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


# PostgreSQL crashes and comes back, the gateway is killed and started again, while many write (R15).
# A 2xx is durable, a refusal had no effect, and the SDK finds out the rest by itself.


@dataclass
class Crashing:
    """A server that can crash."""

    postgres: PostgresServer
    directory: Path

    def crash(self, by: signal.Signals) -> None:
        """End the server without a shutdown, and start it again on what it had written."""
        pid = int((self.directory / "pgdata" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, by)
        self.postgres.stop()
        self.postgres.start()


@asynccontextmanager
async def server(bin_dir: Path) -> AsyncIterator[Crashing]:
    """Run a server of the test's own, with the audited tables."""
    directory = new_directory()
    postgres = PostgresServer(bin_dir=bin_dir, data_dir=directory, port=free_port(), options={"shared_buffers": "16MB"})
    try:
        postgres.start()
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("CREATE DATABASE shop")
        await connection.close()
        dsn = in_database(postgres.url, "shop")
        await upgrade(dsn)
        async with connection_to(dsn) as connection:
            await connection.execute(SCHEMA)
            for table, rule in TABLES.items():
                await connection.execute(TABLE.format(table))
                await protect(connection, table, rule="epoch" if rule == "epoch" else "strict")
                await connection.execute(AUDIT.format(table))
        yield Crashing(postgres, directory)
    finally:
        postgres.stop()
        remove_directory(directory)


@pytest.mark.long("crashes and restores of PostgreSQL")
@pytest.mark.parametrize("server_name", ["embedded-18", "debian-15"])
async def test_crashes_of_postgresql_and_of_the_gateway_lose_nothing_and_double_nothing(
    server_name: str, short_dir: Path, seed: int
) -> None:
    # seconds, of which it takes about twenty
    within = 4 * PATIENCE
    async with asyncio.timeout(within), server(server_bin_dir(server_name)) as crashing:
        dsn = in_database(crashing.postgres.url, "shop")
        async with gateway_process(dsn, short_dir) as gateway:
            over = asyncio.Event()
            writers = Writers(gateway.url, seed, over.is_set)
            writing = asyncio.create_task(writers.write(with_sdk=4, by_hand=4))

            async def more(count: int = 100) -> None:
                wanted = writers.accepted + count

                async def written() -> bool:
                    assert not writing.done(), writing.result()
                    return writers.accepted >= wanted

                await eventually(written, what=f"{count} more writes {writers.answers}")

            await more()
            for by in (signal.SIGQUIT, signal.SIGKILL):
                crashing.crash(by)  # with requests under way, whose answers wait meanwhile
                await more()
                gateway.crash()
                gateway.start()
                await gateway.serves()
                await more()
            over.set()
            await writing
        async with connection_to(dsn) as connection:
            wrong = await judge(connection, writers)
    assert_none(wrong, f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)}")
