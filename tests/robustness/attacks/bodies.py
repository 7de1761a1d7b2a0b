"""`python -m tests.robustness.attacks.bodies`: bodies that become large: as objects of Python, as text in PostgreSQL.

It starts a gateway on an embedded PostgreSQL, on loopback only, and ends both. Each body is as large as a gateway takes
it by default, or smaller.

- nested: 30 PATCHes of 1 MB of nested arrays wait for a row that is locked.
- lines: 12 batches of 12 such lines wait for it.
- expands: numbers with exponents are written, and read.
- aliases: a text of control characters is read under 250 names, and a document by 200 paths.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import httpx
import psycopg
from tests.robustness.attacks.unsent import forget_peak, memory

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import descendants, server_directory

SQL: Final = """
CREATE TABLE docs (id int PRIMARY KEY, doc jsonb, note text, numbers numeric[], n int, floats float8[]);
INSERT INTO docs (id, doc) SELECT i, jsonb_build_object('big', repeat('x', 1000000)) FROM generate_series(1, 200) i;
UPDATE docs SET note = repeat(chr(1), 250000), floats = array_fill(1e308, ARRAY[50000]) WHERE id = 3;
"""
NESTED: Final = '{"doc": [' + ",".join(["[[[[]]]]"] * 115_000) + "]}"
ROW: Final = "/v1/data/docs/"
EXPANDING: Final = {
    "jsonb, 4,000 of 1e131071": f'{{"doc": [{",".join(["1e131071"] * 4000)}]}}',
    "jsonb, 4,000 of 1e-16383": f'{{"doc": [{",".join(["1e-16383"] * 4000)}]}}',
    "numeric[], 4,000 numbers": f'{{"numbers": [{",".join(["1e131071"] * 4000)}]}}',
    "numeric[], one string": f'{{"numbers": "{{{",".join(["1e131071"] * 4000)}}}"}}',
}
SELECTED: Final = {
    "250 names of a text": ",".join(f"a{n}:note" for n in range(250)),
    "250 paths to a text": ",".join(f"a{n}:doc->big" for n in range(250)),
    "250 casts of numbers": ",".join(f"a{n}:floats::numeric[]" for n in range(250)),
}


@contextmanager
def attacked(directory: Path) -> Iterator[tuple[GatewayServer, Postgres, psycopg.Connection]]:
    """Run a gateway on a database with a table of large rows."""
    postgres = Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data")
    with postgres:
        run_command(postgres.url, "migrate")
        with psycopg.connect(postgres.url, autocommit=True) as owner:
            owner.execute(SQL)
            run_command(postgres.url, "protect", "docs")
            with GatewayServer(postgres.url, directory / "log") as gateway:
                yield gateway, postgres, owner


def _waiting(gateway: GatewayServer, owner: psycopg.Connection, requests: list[tuple[str, str, bytes]]) -> str:
    """Send requests that wait for the first row; say what the gateway's memory is then, and how others are answered."""
    pid, answered = gateway.pid, []
    forget_peak(pid)
    before = memory(pid)["VmRSS"]

    def send(method: str, path: str, body: bytes) -> None:
        kind = "application/x-ndjson" if "batch" in path else "application/json"
        headers = {"Content-Type": kind} | ({} if "batch" in path else {"X-Fence-Token": "9"})
        answered.append(
            httpx.request(method, gateway.url + path, content=body, headers=headers, timeout=120).status_code
        )

    with owner.transaction():
        owner.execute("SELECT FROM docs WHERE id = 1 FOR UPDATE")
        threads = [threading.Thread(target=send, args=each) for each in requests]
        for each in threads:
            each.start()
        time.sleep(6)
        now = memory(pid)
        other = httpx.patch(f"{gateway.url}{ROW}2", json={"n": 1}, headers={"X-Fence-Token": "9"}, timeout=60)
    for each in threads:
        each.join()
    return (
        f"memory of the gateway {before} MB before, {now['VmRSS']} while they wait, {now['VmHWM']} at most;"
        f" another row meanwhile {other.status_code}; they are answered {sorted(set(answered))}"
    )


def _backends(postgres: Postgres) -> list[int]:
    return [pid for pid in descendants(postgres.pid) if pid != postgres.pid]


def _asked(postgres: Postgres, gateway: GatewayServer, method: str, path: str, body: str | None) -> str:
    for pid in _backends(postgres):
        forget_peak(pid)
    headers = {"X-Fence-Token": str(time.time_ns()), "Content-Type": "application/json"}
    began = time.monotonic()
    answer = httpx.request(method, gateway.url + path, content=body, headers=headers, timeout=120)
    took = time.monotonic() - began
    peak = max(memory(pid)["VmHWM"] for pid in _backends(postgres))
    return f"{answer.status_code}, {len(answer.content):,} bytes, {took:.1f} s, PostgreSQL {peak} MB at most"


def main() -> None:
    """Attack, and print what it cost."""
    with server_directory() as directory, attacked(directory) as (gateway, postgres, owner):
        nested = NESTED.encode()
        click.echo(f"nested: {_waiting(gateway, owner, [('PATCH', f'{ROW}1', nested)] * 30)}")
        line = json.dumps({"method": "PATCH", "path": "docs/1", "token": 50}).encode()[:-1]
        lines = (line + b', "body": ' + nested[:1_000_000].rsplit(b",", 1)[0] + b"]}}\n") * 12
        click.echo(f"lines: {_waiting(gateway, owner, [('POST', '/v1/batch', lines)] * 12)}")
        for name, body in EXPANDING.items():
            click.echo(f"expands, {name}: PATCH {_asked(postgres, gateway, 'PATCH', f'{ROW}5', body)}")
            click.echo(f"expands, {name}: GET {_asked(postgres, gateway, 'GET', f'{ROW}5', None)}")
        for name, select in SELECTED.items():
            click.echo(f"aliases, {name}: GET {_asked(postgres, gateway, 'GET', f'{ROW}3?select={select}', None)}")


if __name__ == "__main__":
    main()
