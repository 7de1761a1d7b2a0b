"""`python -m tests.robustness.attacks.held`: one caller holds what others need, and how they are answered meanwhile.

It starts a gateway with the defaults on an embedded PostgreSQL, on loopback only, and ends both. The attacker comes
from 127.0.0.1, another caller from 127.0.0.2. Each attack ends by itself.

- batches: two batches of 18 lines that land as a whole, each line a second.
- filters: 14 PATCHes by a filter wait for a row that is locked.
- grants: 12 acquires claim that row.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import click
import httpx
import psycopg

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import server_directory

SQL: Final = """
CREATE TABLE things (id text PRIMARY KEY, n int, note text);
INSERT INTO things SELECT id, 0 FROM generate_series(1, 100) id;
CREATE TABLE slow (LIKE things INCLUDING ALL);
INSERT INTO slow SELECT id, 0 FROM generate_series(1, 100) id;
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END';
CREATE TRIGGER slowly BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION slowly();
"""
SECONDS: Final = 12
NDJSON: Final = {"Content-Type": "application/x-ndjson"}
Ask = Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]]


def batch(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
    """Send 18 lines to a slow table, or, of another caller, one to another table."""
    table, lines = ("slow", 18) if number >= 0 else ("things", 1)
    line = '{"method":"PATCH","path":"%s/%d","token":%d,"body":{"n":1}}\n'
    body = "".join(line % (table, 50 + abs(number), 10_000 + n) for n in range(lines))
    return client.post("/v1/batch?atomic=true", content=body, headers=NDJSON)


def by_filter(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
    """Write the locked row by a filter; another caller, another row."""
    token = {"X-Fence-Token": str(time.time_ns())}
    return client.patch(f"/v1/data/things?id=eq.{1 if number >= 0 else 2}", json={"n": 1}, headers=token)


def acquire(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
    """Claim the locked row; another caller claims nothing."""
    claim = {"claim": ["things/1"]} if number >= 0 else {}
    return client.post("/v1/leases", json={"lock": f"lock-{number}-{time.time_ns()}", **claim})


@asynccontextmanager
async def client_at(address: str, url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client whose connections come from this address."""
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=1100))
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, transport=transport) as client:
        yield client


async def attack(url: str, name: str, ask: Ask, times: int, other: Ask) -> None:
    """Ask so many times at once, again and again; meanwhile another caller asks four times a second."""
    answered: Counter[int] = Counter()
    others: list[tuple[float, int]] = []
    until = time.monotonic() + SECONDS
    async with client_at("127.0.0.1", url) as attacker, client_at("127.0.0.2", url) as client:

        async def again(number: int) -> None:
            while time.monotonic() < until:
                answered[await _status(ask(attacker, number))] += 1

        attacking = [asyncio.create_task(again(number)) for number in range(times)]
        await asyncio.sleep(1)
        while time.monotonic() < until:
            began = time.monotonic()
            status = await _status(other(client, -1))
            others.append((time.monotonic() - began, status))
            await asyncio.sleep(0.25)
        await asyncio.gather(*attacking)
    statuses = Counter(status for _, status in others)
    click.echo(
        f"{name}: another caller {dict(statuses)}, the slowest {max(took for took, _ in others):.1f} s;"
        f" the attacker {dict(answered)}"
    )


async def _status(asked: Awaitable[httpx.Response]) -> int:
    """Give the status of an answer; 0: the connection ended without one."""
    try:
        return (await asked).status_code
    except httpx.TransportError:
        return 0


def run(directory: Path) -> None:
    """Make all of them."""
    postgres = Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data")
    with postgres:
        run_command(postgres.url, "migrate")
        with psycopg.connect(postgres.url, autocommit=True) as owner, psycopg.connect(postgres.url) as keeper:
            owner.execute(SQL)
            run_command(postgres.url, "protect", "things")
            run_command(postgres.url, "protect", "slow")
            with GatewayServer(postgres.url, directory / "log") as gateway:
                asyncio.run(attack(gateway.url, "batches", batch, 2, batch))
                keeper.execute("SELECT FROM things WHERE id = '1' FOR UPDATE")
                asyncio.run(attack(gateway.url, "filters", by_filter, 14, by_filter))
                asyncio.run(attack(gateway.url, "grants", acquire, 12, acquire))
                keeper.rollback()


if __name__ == "__main__":
    with server_directory() as chosen:
        run(chosen)
