"""`python -m tests.robustness.attacks.renewals`: one caller asks about leases that are not there, over very many
connections, while another one renews its lease.

It starts a gateway with one worker on an embedded PostgreSQL, on loopback only, and ends it. Each attack comes from
127.0.0.1 in a process of its own, over 1,015 connections, and lasts some seconds. A caller at 127.0.0.2 renews a lease
of three seconds four times a second, as long as it has it.
"""

import asyncio
import multiprocessing
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Final
from urllib.parse import urlsplit

import click
import httpx

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import server_directory

CONNECTIONS: Final = 1015
SECONDS: Final = 10
SECRET: Final = "s" * 40
OURS: Final = 2**47 + 10**9
"""From here on ids have the form of a lease's, and are none's."""
ATTACKS: Final = {
    "renew, no id": ("POST", "/v1/leases/{}/renew", 10**9),
    "renew": ("POST", "/v1/leases/{}/renew", OURS),
    "mint": ("POST", "/v1/leases/{}/tokens", OURS),
    "release": ("DELETE", "/v1/leases/{}", OURS),
    "look": ("GET", "/v1/leases/{}", OURS),
    "renew at a source": ("POST", "/v1/leases/other-{}/renew", OURS),
}
"""Method, path, and the first id."""


async def _ask(where: tuple[str, int], asked: tuple[str, str], ids: "count[int]", statuses: Counter[str]) -> None:
    """Be one connection, and go on asking."""
    reader, writer = await asyncio.open_connection(*where, local_addr=("127.0.0.1", 0))
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            path = asked[1].format(next(ids))
            lines = (f"{asked[0]} {path} HTTP/1.1", "Host: localhost", f"X-Lease-Secret: {SECRET}", "Content-Length: 0")
            writer.write("\r\n".join((*lines, "", "")).encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            statuses[answer[9:12].decode()] += 1
            lengths = [each for each in answer.lower().split(b"\r\n") if each.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)


async def _flood(where: tuple[str, int], method: str, path: str, first: int) -> Counter[str]:
    statuses: Counter[str] = Counter()
    ids = count(first)
    asking = [asyncio.create_task(_ask(where, (method, path), ids, statuses)) for _ in range(CONNECTIONS)]
    await asyncio.wait(asking, timeout=SECONDS)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return statuses


def _attack(where: tuple[str, int], attack: str, answers: "multiprocessing.Queue[Counter[str]]") -> None:
    answers.put(asyncio.run(_flood(where, *ATTACKS[attack])))


def _keep(url: str, lock: str, until: float) -> tuple[Counter[int], float]:
    """Renew a lease; count the answers, and say how long the slowest one took."""
    statuses, slowest = Counter[int](), 0.0
    secret = {"X-Lease-Secret": lock.replace(" ", "-").ljust(40, "k")}
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(base_url=url, transport=transport, timeout=60, headers=secret) as client:
        lease = client.post("/v1/leases", json={"lock": lock, "ttl_ms": 3000}).raise_for_status().json()["lease_id"]
        time.sleep(1)  # let the attack begin
        while time.monotonic() < until:
            began = time.monotonic()
            status = client.post(f"/v1/leases/{lease}/renew").status_code
            slowest = max(slowest, time.monotonic() - began)
            statuses[status] += 1
            if status == httpx.codes.GONE:
                break
            time.sleep(0.25)
    return statuses, slowest


def main() -> None:
    """Attack, and print who was refused."""
    click.echo(f"{'':18} {'answers to the attack':40} {'renewals, by answer':28} {'slowest, s':>10}")
    with server_directory() as directory, Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data") as postgres:
        run_command(postgres.url, "migrate")
        # Of a lock service that is the database itself; it is never asked.
        options = ("--sources", "other=postgres-advisory:")
        with GatewayServer(postgres.url, directory / "log", *options) as gateway:
            split = urlsplit(gateway.url)
            where = (split.hostname or "", split.port or 0)
            for name in ATTACKS:
                answers: multiprocessing.Queue[Counter[str]] = multiprocessing.Queue()
                flood = multiprocessing.Process(target=_attack, args=(where, name, answers))
                flood.start()
                kept, slowest = _keep(gateway.url, name, time.monotonic() + SECONDS)
                attacked = answers.get()
                flood.join()
                theirs = ", ".join(f"{number} x {status}" for status, number in attacked.most_common())
                ours = ", ".join(f"{number} x {status}" for status, number in kept.most_common())
                click.echo(f"{name:18} {theirs:40} {ours:28} {slowest:10.2f}")


if __name__ == "__main__":
    main()
