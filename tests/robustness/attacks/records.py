"""`python -m tests.robustness.attacks.records`: what requests leave behind, in bytes: lines of log, bodies of problems,
answers kept under Idempotency-Keys.

Each request is as large as a gateway takes it by default; there are few of them, one after the other, on loopback.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import httpx
import psycopg

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import server_directory

LONG: Final = "n" * 900_000
IN_A_HEAD: Final = "h" * 60_000
SQL: Final = """
CREATE TABLE things (id text PRIMARY KEY, n int, note text);
INSERT INTO things SELECT id, 0, repeat('y', 57000) FROM generate_series(1, 1000) id;
INSERT INTO things VALUES ('one', 0, repeat('z', 40000000));
"""
DATA: Final = "/v1/data/"
REFUSED: Final[dict[str, tuple[str, str, object, dict[str, str]]]] = {
    "unknown column": ("PATCH", f"{DATA}things/1", {LONG: 1}, {}),
    "value of another type": ("PATCH", f"{DATA}things/1", {"n": LONG}, {}),
    "unknown table in a claim": ("POST", "/v1/claims", {"resource": f"{LONG}/1"}, {}),
    "row that is not there": ("POST", "/v1/claims", {"resource": f"things/{LONG}"}, {}),
    "lock and owner": ("POST", "/v1/leases", {"lock": LONG, "owner": LONG[:90_000], "ttl_ms": 1000}, {}),
    "line of a batch": (
        "POST",
        "/v1/batch",
        {"method": "PATCH", "path": "things/1", "token": 9, "body": {LONG: 1}},
        {},
    ),
    "unknown table in a path": ("PATCH", f"{DATA}{IN_A_HEAD}/1", {"n": 1}, {}),
    "control characters in a path": ("PATCH", f"{DATA}{quote(chr(1)) * 20_000}/1", {"n": 1}, {}),
    "key in a path": ("PATCH", f"{DATA}things/{IN_A_HEAD}", {"n": 1}, {}),
    "filter": ("GET", f"{DATA}things?n=eq.{IN_A_HEAD}", None, {}),
    "JSON path": ("GET", f"{DATA}things?select=note->{IN_A_HEAD}", None, {}),
    "preference": ("PATCH", f"{DATA}things/1", {"n": 1}, {"Prefer": IN_A_HEAD}),
    "credential": ("GET", f"{DATA}things", None, {"Authorization": f"Bearer {IN_A_HEAD}"}),
    "request id": ("PATCH", f"{DATA}things/none", {"n": 1}, {"X-Request-Id": IN_A_HEAD}),
}
"""Requests that are refused: method, path, body, headers."""
KEPT: Final[dict[str, tuple[str, str, object]]] = {
    "PATCH by filter": ("PATCH", f"{DATA}things?id=neq.one", {"n": 1}),
    "PATCH by key": ("PATCH", f"{DATA}things/one", {"n": 1}),
    "claim": ("POST", "/v1/claims", {"resource": "things/one"}),
    "queued PATCH": ("PATCH", f"{DATA}things/one", {"n": 2}),
}
"""Writes that answer some 57 and 40 MB."""
TIMES: Final = 10


@contextmanager
def attacked(directory: Path) -> Iterator[tuple[GatewayServer, psycopg.Connection]]:
    """Run a gateway on a database with a table of large rows."""
    postgres = Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data")
    with postgres:
        run_command(postgres.url, "migrate")
        with psycopg.connect(postgres.url, autocommit=True) as owner:
            owner.execute(SQL)
            run_command(postgres.url, "protect", "things")
            options = ("--log-format", "json", "--access-log")
            with GatewayServer(postgres.url, directory / "log", *options) as gateway:
                yield gateway, owner


def _sizes(log: Path, before: int) -> tuple[int, int]:
    written = log.read_bytes()[before:]
    return len(written), max(map(len, written.splitlines()), default=0)


def main() -> None:
    """Attack, and print what is left."""
    with server_directory() as directory, attacked(directory) as (gateway, owner):
        log = directory / "log"
        with httpx.Client(base_url=gateway.url, timeout=120) as client:
            click.echo(f"{'refused':30} {'status':>6} {'answer, bytes':>14} {'log, bytes':>12} {'longest line':>13}")
            for name, (method, path, body, more) in REFUSED.items():
                before = log.stat().st_size
                headers = more if path == "/v1/batch" else {"X-Fence-Token": "9", **more}
                content = None if body is None else json.dumps(body)
                kind = {"Content-Type": "application/x-ndjson" if path == "/v1/batch" else "application/json"}
                answer = client.request(method, path, content=content, headers=headers | kind)
                size, longest = _sizes(log, before)
                click.echo(f"{name:30} {answer.status_code:6} {len(answer.content):14,} {size:12,} {longest:13,}")
            click.echo(f"\n{f'kept, {TIMES} times':30} {'status':>6} {'answer, bytes':>14} {'kept, bytes':>12}")
            token = 100
            for name, (method, path, sent) in KEPT.items():
                owner.execute("DELETE FROM fencepost.idempotency")
                for _ in range(TIMES):
                    token += 10
                    headers = {"X-Fence-Token": str(token), "Idempotency-Key": f'"{token}"'}
                    prefer = "return=representation" + (", respond-async" if "queued" in name else "")
                    if path.startswith(DATA):
                        headers["Prefer"] = prefer
                    answer = client.request(method, path, json=sent, headers=headers)
                    if "Location" in answer.headers:
                        client.get(f"{answer.headers['Location']}?wait=60")
                kept = owner.execute(
                    "SELECT coalesce(sum(length(answer) + pg_column_size(headers)), 0) FROM fencepost.idempotency"
                ).fetchone()
                click.echo(f"{name:30} {answer.status_code:6} {len(answer.content):14,} {kept[0] if kept else 0:12,}")


if __name__ == "__main__":
    main()
