"""`python -m tests.robustness.attacks.letters`: queued writes that come to nothing, and what they leave on the disk.

It starts a gateway that applies its own queue, on an embedded PostgreSQL, on loopback only, and ends it. Nobody has a
credential. For some seconds four connections queue PATCHes of 900 kB:

- denied: the role of those without a credential may read the table, and not write to it.
- failing: it may write, and each write breaks a constraint. The letters of a queue may have 256 MB.
"""

import asyncio
import base64
import json
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import Final

import click
import httpx
import psycopg

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import server_directory

CONNECTIONS: Final = 4
SECONDS: Final = 10
MB: Final = 1_000_000
BODY: Final = json.dumps({"note": secrets.token_hex(450_000)})
SQL: Final = """
CREATE ROLE anon; CREATE TABLE notes (id text PRIMARY KEY, note text NOT NULL CHECK (length(note) < 9));
INSERT INTO notes SELECT n, '' FROM generate_series(1, 100) n; GRANT SELECT ON notes TO anon"""
ATTACKS: Final = {"denied": "SELECT", "failing": "GRANT UPDATE ON notes TO anon"}
LEFT: Final = """
SELECT (SELECT count(*) FROM fencepost.queue_dead), pg_database_size(current_database()),
       (SELECT count(*) FROM fencepost.queued)"""


async def _queue(url: str, number: int, until: float, statuses: Counter[str]) -> None:
    """Be one connection."""
    headers = {"Content-Type": "application/json", "Prefer": "respond-async, return=minimal", "X-Fence-Token": "9"}
    async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
        while time.monotonic() < until:
            number += CONNECTIONS
            answer = await client.patch(f"/v1/data/notes/{number % 100 + 1}", content=BODY)
            code = "" if answer.status_code == httpx.codes.ACCEPTED else answer.json()["code"]
            statuses[f"{answer.status_code} {code}".strip()] += 1


async def _attack(url: str) -> Counter[str]:
    statuses: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(_queue(url, number, until, statuses) for number in range(CONNECTIONS)))
    return statuses


def _left(owner: psycopg.Connection) -> tuple[int, int]:
    """Count the letters, and the bytes of the database, once all that is queued is decided."""
    while True:
        row = owner.execute(LEFT).fetchone()
        if row is not None and row[2] == 0:
            owner.execute("CHECKPOINT")
            return row[0], row[1]
        time.sleep(0.1)


def _options(directory: Path) -> tuple[str, ...]:
    (directory / "jwt").write_text("s" * 40)
    (directory / "keys").write_text(f"k1:{base64.b64encode(b'k' * 32).decode()}")
    files = ("--jwt-secret-file", str(directory / "jwt"), "--seal-keys-file", str(directory / "keys"))
    return (*files, "--anon-role", "anon", "--roles", "anon")


def main() -> None:
    """Attack, and print what is left."""
    click.echo(f"{'':8} {'letters':>8} {'MB on disk':>11} {'MB a second':>12}  answers")
    for name, grant in ATTACKS.items():
        with (
            server_directory() as directory,
            Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data") as postgres,
        ):
            run_command(postgres.url, "migrate")
            with psycopg.connect(postgres.url, autocommit=True) as owner:
                owner.execute(SQL)
                owner.execute(grant)
                run_command(postgres.url, "protect", "notes")
                bound = {"FENCEPOST_MAX_LETTER_BYTES": str(256 * MB)}
                with GatewayServer(postgres.url, directory / "log", *_options(directory), settings=bound) as gateway:
                    before = _left(owner)
                    statuses = asyncio.run(_attack(gateway.url))
                    after = _left(owner)
        grown = (after[1] - before[1]) / MB
        answers = ", ".join(f"{count} x {status}" for status, count in statuses.most_common())
        click.echo(f"{name:8} {after[0] - before[0]:8} {grown:11,.0f} {grown / SECONDS:12,.1f}  {answers}")


if __name__ == "__main__":
    main()
