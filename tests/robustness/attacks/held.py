"""`python -m tests.robustness.attacks.held`: one caller holds what others need, and how they are answered meanwhile.

It starts a gateway with the defaults on an embedded PostgreSQL, on loopback only, and ends both. The attacker comes
from 127.0.0.1, another caller from 127.0.0.2. Each attack ends by itself.

- batches: two batches of 18 lines that land as a whole, each line a second.
- filters: 14 PATCHes by a filter wait for a row that is locked.
- grants: 12 acquires claim that row.
- renewals: 1,015 connections renew leases that are not there.
- letters: 300 queued writes of 50 kB without a credential, which the anonymous role may not make.
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

from fencepost.embedded.server import embedded_bin_dir
from fencepost.testing.servers.directories import server_directory
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres

SQL: Final = """
CREATE TABLE things (id text PRIMARY KEY, n int, note text);
INSERT INTO things SELECT id, 0 FROM generate_series(1, 100) id;
CREATE TABLE slow (LIKE things INCLUDING ALL);
INSERT INTO slow SELECT id, 0 FROM generate_series(1, 100) id;
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END';
CREATE TRIGGER slowly BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION slowly();
CREATE ROLE nobody_web;
GRANT SELECT ON things TO nobody_web;
"""
SECONDS: Final = 12
SECRET: Final = "0123456789abcdef0123456789abcdef"
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


def renew(client: httpx.AsyncClient, number: int) -> Awaitable[httpx.Response]:
    """Renew a lease that is not there."""
    return client.post(f"/v1/leases/{10**12 + number}/renew", json={}, headers={"X-Lease-Secret": SECRET})


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


async def renewals(url: str) -> None:
    """Renew what is not there by a thousand connections, while another caller renews its lease."""
    async with client_at("127.0.0.2", url) as client:
        lease = (await client.post("/v1/leases", json={"lock": "mine", "ttl_ms": 60_000})).json()

    def own(client: httpx.AsyncClient, _number: int) -> Awaitable[httpx.Response]:
        secret = {"X-Lease-Secret": lease["secret"]}
        return client.post(f"/v1/leases/{lease['lease_id']}/renew", json={}, headers=secret)

    await attack(url, "renewals", renew, 1015, own)


async def letters(url: str, owner: psycopg.Connection) -> None:
    """Queue writes that nobody may make."""
    size = "SELECT count(*), coalesce(sum(length(value)), 0) FROM fencepost.queue_dead"
    body, answered = {"note": "x" * 50_000}, Counter[int]()
    async with client_at("127.0.0.1", url) as client:
        for number in range(300):
            headers = {"X-Fence-Token": str(number + 1), "Prefer": "respond-async"}
            answered[(await client.patch("/v1/data/things/9", json=body, headers=headers)).status_code] += 1
    for _ in range(40):
        if owner.execute("SELECT count(*) FROM fencepost.queued").fetchone() == (0,):
            break
        await asyncio.sleep(0.25)
    click.echo(f"letters: answered {dict(answered)}; letters and their bytes: {owner.execute(size).fetchone()}")


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
                asyncio.run(renewals(gateway.url))
            keys = directory / "keys"
            keys.write_text(f"k1:{'a' * 43}=")
            settings = {
                "FENCEPOST_ANON_ROLE": "nobody_web",
                "FENCEPOST_JWT_SECRET": SECRET,
                "FENCEPOST_SEAL_KEYS_FILE": str(keys),
                "FENCEPOST_ROLES": "nobody_web",
            }
            with GatewayServer(postgres.url, directory / "log", settings=settings) as gateway:
                asyncio.run(letters(gateway.url, owner))


if __name__ == "__main__":
    with server_directory() as chosen:
        run(chosen)
