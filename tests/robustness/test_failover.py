"""Failover with a real primary and a real standby (R19): what a gateway lets through, and what an operator does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from click.testing import CliRunner, Result
from tests.support.gateways import in_process
from tests.support.interleave import Connection
from tests.support.violations import promised

from fencepost.cli.main import main
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import Pair, in_database, replicated
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("failovers")

SQL = """
CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE public.jobs (id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
"""


@asynccontextmanager
async def shop(bin_dir: Path) -> AsyncIterator[Pair]:
    """Run a pair with a database `shop` on it: orders takes built-in tokens, jobs those of somewhere else."""
    async with replicated(bin_dir) as pair:
        async with sql(pair.primary.url) as connection:
            await connection.execute("CREATE DATABASE shop")
        await upgrade(in_database(pair.primary.url, "shop"))
        async with sql(in_database(pair.primary.url, "shop")) as connection:
            await connection.execute(SQL)
            await protect(connection, "orders", source="builtin")
            await protect(connection, "jobs")
        await pair.caught_up()
        yield pair


@asynccontextmanager
async def sql(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


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


async def raised(url: str, reason: str = "standby promoted") -> Result:
    arguments = ["generation", "--database-url", url, "raise", "--reason", reason]
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def first_token(url: str) -> int:
    async with sql(url) as connection:
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
        async with sql(of_standby(pair)) as db:
            await the_control_without_the_check_lets_an_old_token_in(db, old.tokens[-1])

        refusal = await patch(http, "k", old.tokens[-1], "zombie")
        assert code(refusal) == REFUSED
        assert int(refusal.headers["Retry-After"]) > 0
        assert (refusal.json()["found"]["timeline"], refusal.json()["known"]["timeline"]) == (2, 1)
        assert refusal.json()["found"]["system_identifier"] == refusal.json()["known"]["system_identifier"]
        assert "a standby was promoted" in refusal.json()["detail"]
        for answer in (
            await put(http, "new", old.tokens[-1], "zombie"),
            await claim(http, "orders/k", old.tokens[-1]),
            await put(http, "j", 8, "eight", "jobs"),
            await acquire(http, "successor"),
            await old.renew(),
            await old.mint(),
        ):
            assert code(answer) == REFUSED
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "refused" in ready.json()["origin"]
        assert "fencepost_origin_accepted 0.0" in (await http.get("/metrics")).text

        raising = await raised(of_standby(pair))
        assert (raising.exit_code, "is the one to write to" in raising.output) == (0, True), raising.output

        for answer in (
            await patch(http, "k", old.tokens[-1], "zombie"),
            await put(http, "new", old.tokens[-1], "zombie"),
            await claim(http, "orders/k", old.tokens[-1]),
            await claim(http, "orders/new", old.tokens[-1]),
            await patch(http, "new", old.tokens[-1], "zombie"),
        ):
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


async def the_control_without_the_check_lets_an_old_token_in(db: Connection, token: int) -> None:
    """Straight to the triggers, as a gateway would that does not ask for the origin: the tokens repeat, and the old one
    passes.
    """
    undone = db.transaction()
    await undone.start()
    while await db.fetchval("SELECT nextval('fencepost.tokens')") < token:
        pass
    wrote = await db.execute(
        "UPDATE public.orders SET status = 'ZOMBIE', last_fence_token = $1 WHERE order_id = 'k'", token
    )
    assert wrote == "UPDATE 1"
    await undone.rollback()


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
        async with sql(in_database(pair.primary.url, "shop")) as db:
            await db.execute("SELECT nextval('fencepost.tokens')")
            await db.execute("INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', 1)")
        await pair.caught_up()
        # Without a consumer: its questions would be the first to meet the promotion.
        async with in_process(of_standby(pair), consume_here=False) as http, sql(of_standby(pair)) as look:
            assert await read(http, "k") == "new"
            for answer in (
                await patch(http, "k", 2, "written"),
                await acquire(http, "eager"),
                await claim(http, "orders/k", 2),
            ):
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


async def test_connections_to_a_former_primary_that_lives_on_are_dropped_once_its_successor_is_met(
    bin_dir: Path,
) -> None:
    """Split brain: the link turns while connections to the old primary are open, and it knows nothing of it."""
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http, sql(of_standby(pair)) as new:
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
        async with sql(in_database(pair.primary.url, "shop")) as db:
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
