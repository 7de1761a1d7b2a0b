"""Attacks by hand: `python -m tests.robustness.attacks [NAME …]`, all of them without a name. NAMES has what each does.

Each starts a gateway with one worker on an embedded PostgreSQL, on loopback only, ends by itself, and prints what it
cost the gateway or another caller.
"""

import asyncio
import base64
import json
import multiprocessing
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import asyncpg
import click
import httpx
import psycopg
from tests.support.gateways import Gateway, serving_process

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.gateway import GatewayServer, run_command
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import descendants, server_directory

SECONDS: Final = 10


@contextmanager
def attacked(
    directory: Path, sql: str, *protected: str, options: tuple[str, ...] = (), settings: Mapping[str, str] | None = None
) -> Iterator[tuple[GatewayServer, Postgres, psycopg.Connection]]:
    """Run a gateway on a database with these tables."""
    with Postgres(bin_dir=embedded_bin_dir(), data_dir=directory / "data") as postgres:
        run_command(postgres.url, "migrate")
        with psycopg.connect(postgres.url, autocommit=True) as owner:
            if sql:
                owner.execute(sql)
            for table in protected:
                run_command(postgres.url, "protect", table)
            with GatewayServer(postgres.url, directory / "log", *options, settings=settings) as gateway:
                yield gateway, postgres, owner


LARGE_TABLES = """
CREATE TABLE large (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO large SELECT n, repeat('x', 5700) FROM generate_series(1, 10000) n;
CREATE TABLE wide (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO wide SELECT n, repeat('x', 1000000) FROM generate_series(0, 149) n;"""


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _batch(row: int) -> bytes:
    lines = b"".join(b'{"claim": "wide/%d", "token": "%d"}\n' % (row, token) for token in range(1, 61))
    head = "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: "
    return head.encode() + b"%d\r\n\r\n" % len(lines) + lines


UNSENT: dict[str, tuple[int, Callable[[int], bytes], int]] = {
    "pipeline": (60, lambda _: _get("/x") * (256_000 // len(_get("/x"))), 1024),
    "readers": (40, lambda _: _get("/v1/data/large"), 0),
    "verdicts": (150, _batch, 0),
}
"""Connections, what the one of a number sends, bytes that it takes each time."""


def memory(pid: int) -> dict[str, int]:
    """Give a process's resident memory in MB, and the most that it was since `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: int(rest.split()[0]) // 1024
        for name, _, rest in (each.partition(":") for each in lines)
        if name in ("VmRSS", "VmHWM")
    }


def forget_peak(pid: int) -> None:
    """Have the peak counted anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def _take_nothing(where: tuple[str, int], sends: bytes, takes: int, seconds: int) -> bool:
    """Be one connection; tell whether the gateway ended it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        await loop.sock_connect(own, where)
        sending = asyncio.create_task(loop.sock_sendall(own, sends))
        try:
            for _ in range(seconds * 4):
                await asyncio.sleep(0.25)
                if takes and not await asyncio.wait_for(loop.sock_recv(own, takes), 30):
                    return True
            own.send(b"\r\n")
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
        return False


async def _other(where: tuple[str, int], path: str) -> str:
    """Ask as another caller, and take the answer at once."""
    reader, writer = await asyncio.open_connection(*where, local_addr=("127.0.0.2", 0))
    try:
        writer.write(_get(path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await asyncio.wait_for(reader.read(-1), 30)
        return f"{path} {answer[9:12].decode()} {len(answer):,} bytes"
    except (OSError, TimeoutError) as error:
        return f"{path} {type(error).__name__}"
    finally:
        writer.transport.abort()


async def measure_unsent(gateway: Gateway, name: str, seconds: int = 15) -> None:
    """Make one attack, and print what it cost."""
    connections, sends, takes = UNSENT[name]
    url, pid = urlsplit(gateway.url), gateway.process.pid
    where = (url.hostname or "", url.port or 0)
    click.echo(await _other(where, "/v1/data/large"))
    forget_peak(pid)
    before = memory(pid)["VmRSS"]
    attacking = [asyncio.create_task(_take_nothing(where, sends(n), takes, seconds)) for n in range(connections)]
    await asyncio.sleep(seconds / 2)
    others = [await _other(where, path) for path in ("/x", "/v1/data/orders/order-123", "/v1/data/large")]
    ended = sum(await asyncio.gather(*attacking))
    at_end = memory(pid)
    await asyncio.sleep(3)
    after = memory(pid)["VmRSS"]
    click.echo(
        f"{name}: {connections} connections, {ended} ended by the gateway; memory {before} MB before,"
        f" {at_end['VmHWM']} at most, {at_end['VmRSS']} at the end, {after} afterwards;"
        f" another caller: {'; '.join(others)}"
    )


async def unsent() -> None:
    """Answers that nobody takes, and what they cost the gateway in memory.

    - pipeline: 60 connections pipeline 256 kB of requests each, and take 1 kB of the answers four times a second.
    - readers: 40 connections ask for 57 MB each, and take nothing.
    - verdicts: 150 connections send batches whose verdicts have 60 MB each, and take nothing.
    """
    for name in UNSENT:
        with server_directory() as directory:
            async with serving_process(directory, "--serve-unprotected", "--log-level", "warning") as gateway:
                connection = await asyncpg.connect((directory / "data" / "url").read_text().strip())
                await connection.execute(LARGE_TABLES)
                await protect(connection, "wide")
                await connection.execute("NOTIFY fencepost, 'reload'")
                await connection.close()
                await measure_unsent(gateway, name)
                click.echo((directory / "stderr").read_text()[-600:])


DOCS: Final = """
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


def _while_waiting(gateway: GatewayServer, owner: psycopg.Connection, requests: list[tuple[str, str, bytes]]) -> str:
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


def bodies() -> None:
    """Bodies that become large: as objects of Python, as text in PostgreSQL. Each is as large as a gateway takes it.

    - nested: 30 PATCHes of 1 MB of nested arrays wait for a row that is locked.
    - lines: 12 batches of 12 such lines wait for it.
    - expands: numbers with exponents are written, and read.
    - aliases: a text of control characters is read under 250 names, and a document by 200 paths.
    """
    with server_directory() as directory, attacked(directory, DOCS, "docs") as (gateway, postgres, owner):
        nested = NESTED.encode()
        click.echo(f"nested: {_while_waiting(gateway, owner, [('PATCH', f'{ROW}1', nested)] * 30)}")
        line = json.dumps({"method": "PATCH", "path": "docs/1", "token": 50}).encode()[:-1]
        lines = (line + b', "body": ' + nested[:1_000_000].rsplit(b",", 1)[0] + b"]}}\n") * 12
        click.echo(f"lines: {_while_waiting(gateway, owner, [('POST', '/v1/batch', lines)] * 12)}")
        for name, body in EXPANDING.items():
            click.echo(f"expands, {name}: PATCH {_asked(postgres, gateway, 'PATCH', f'{ROW}5', body)}")
            click.echo(f"expands, {name}: GET {_asked(postgres, gateway, 'GET', f'{ROW}5', None)}")
        for name, select in SELECTED.items():
            click.echo(f"aliases, {name}: GET {_asked(postgres, gateway, 'GET', f'{ROW}3?select={select}', None)}")


SLOW: Final = """
CREATE TABLE things (id text PRIMARY KEY, n int, note text);
INSERT INTO things SELECT id, 0 FROM generate_series(1, 100) id;
CREATE TABLE slow (LIKE things INCLUDING ALL);
INSERT INTO slow SELECT id, 0 FROM generate_series(1, 100) id;
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NEW; END';
CREATE TRIGGER slowly BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION slowly();
"""
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


async def held_meanwhile(url: str, name: str, ask: Ask, times: int, other: Ask) -> None:
    """Ask so many times at once, again and again; meanwhile another caller asks four times a second."""
    answered: Counter[int] = Counter()
    others: list[tuple[float, int]] = []
    until = time.monotonic() + 12
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


def held() -> None:
    """One caller, at 127.0.0.1, holds what others need; how another one, at 127.0.0.2, is answered meanwhile.

    - batches: two batches of 18 lines that land as a whole, each line a second.
    - filters: 14 PATCHes by a filter wait for a row that is locked.
    - grants: 12 acquires claim that row.
    """
    with (
        server_directory() as directory,
        attacked(directory, SLOW, "things", "slow") as (gateway, postgres, _),
        psycopg.connect(postgres.url) as keeper,
    ):
        asyncio.run(held_meanwhile(gateway.url, "batches", batch, 2, batch))
        keeper.execute("SELECT FROM things WHERE id = '1' FOR UPDATE")
        asyncio.run(held_meanwhile(gateway.url, "filters", by_filter, 14, by_filter))
        asyncio.run(held_meanwhile(gateway.url, "grants", acquire, 12, acquire))
        keeper.rollback()


QUEUEING: Final = 4
MB: Final = 1_000_000
BODY: Final = json.dumps({"note": secrets.token_hex(450_000)})
NOTES: Final = """
CREATE ROLE anon; CREATE TABLE notes (id text PRIMARY KEY, note text NOT NULL CHECK (length(note) < 9));
INSERT INTO notes SELECT n, '' FROM generate_series(1, 100) n; GRANT SELECT ON notes TO anon"""
GRANTS: Final = {"denied": "SELECT", "failing": "GRANT UPDATE ON notes TO anon"}
LEFT: Final = """
SELECT (SELECT count(*) FROM fencepost.queue_dead), pg_database_size(current_database()),
       (SELECT count(*) FROM fencepost.queued)"""


async def _queue(url: str, number: int, until: float, statuses: Counter[str]) -> None:
    """Be one connection."""
    headers = {"Content-Type": "application/json", "Prefer": "respond-async, return=minimal", "X-Fence-Token": "9"}
    async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
        while time.monotonic() < until:
            number += QUEUEING
            answer = await client.patch(f"/v1/data/notes/{number % 100 + 1}", content=BODY)
            code = "" if answer.status_code == httpx.codes.ACCEPTED else answer.json()["code"]
            statuses[f"{answer.status_code} {code}".strip()] += 1


async def _queue_for_a_while(url: str) -> Counter[str]:
    statuses: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(_queue(url, number, until, statuses) for number in range(QUEUEING)))
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


def letters() -> None:
    """Queued writes that come to nothing, and what they leave on the disk: for some seconds four connections queue
    PATCHes of 900 kB, to a gateway that applies its own queue. Nobody has a credential.

    - denied: the role of those without a credential may read the table, and not write to it.
    - failing: it may write, and each write breaks a constraint. The letters of a queue may have 256 MB.
    """
    click.echo(f"{'':8} {'letters':>8} {'MB on disk':>11} {'MB a second':>12}  answers")
    bound = {"FENCEPOST_MAX_LETTER_BYTES": str(256 * MB)}
    for name, grant in GRANTS.items():
        with server_directory() as directory:
            given = _options(directory)
            with attacked(directory, f"{NOTES}; {grant}", "notes", options=given, settings=bound) as (
                gateway,
                _,
                owner,
            ):
                before = _left(owner)
                statuses = asyncio.run(_queue_for_a_while(gateway.url))
                after = _left(owner)
        grown = (after[1] - before[1]) / MB
        answers = ", ".join(f"{count} x {status}" for status, count in statuses.most_common())
        click.echo(f"{name:8} {after[0] - before[0]:8} {grown:11,.0f} {grown / SECONDS:12,.1f}  {answers}")


LONG: Final = "n" * 900_000
IN_A_HEAD: Final = "h" * 60_000
THINGS: Final = """
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
        "POST", "/v1/batch", {"method": "PATCH", "path": "things/1", "token": 9, "body": {LONG: 1}}, {},
    ),
    "unknown table in a path": ("PATCH", f"{DATA}{IN_A_HEAD}/1", {"n": 1}, {}),
    "control characters in a path": ("PATCH", f"{DATA}{quote(chr(1)) * 20_000}/1", {"n": 1}, {}),
    "key in a path": ("PATCH", f"{DATA}things/{IN_A_HEAD}", {"n": 1}, {}),
    "filter": ("GET", f"{DATA}things?n=eq.{IN_A_HEAD}", None, {}),
    "JSON path": ("GET", f"{DATA}things?select=note->{IN_A_HEAD}", None, {}),
    "preference": ("PATCH", f"{DATA}things/1", {"n": 1}, {"Prefer": IN_A_HEAD}),
    "credential": ("GET", f"{DATA}things", None, {"Authorization": f"Bearer {IN_A_HEAD}"}),
    "request id": ("PATCH", f"{DATA}things/none", {"n": 1}, {"X-Request-Id": IN_A_HEAD}),
}  # fmt: skip
"""Requests that are refused: method, path, body, headers."""
KEPT: Final[dict[str, tuple[str, str, object]]] = {
    "PATCH by filter": ("PATCH", f"{DATA}things?id=neq.one", {"n": 1}),
    "PATCH by key": ("PATCH", f"{DATA}things/one", {"n": 1}),
    "claim": ("POST", "/v1/claims", {"resource": "things/one"}),
    "queued PATCH": ("PATCH", f"{DATA}things/one", {"n": 2}),
}
"""Writes that answer some 57 and 40 MB."""
TIMES: Final = 10


def _sizes(log: Path, before: int) -> tuple[int, int]:
    written = log.read_bytes()[before:]
    return len(written), max(map(len, written.splitlines()), default=0)


def records() -> None:
    """What requests leave behind, in bytes: lines of log, bodies of problems, answers kept under Idempotency-Keys.

    Each request is as large as a gateway takes it by default; there are few of them, one after the other.
    """
    logged = ("--log-format", "json", "--access-log")
    with server_directory() as directory, attacked(directory, THINGS, "things", options=logged) as (gateway, _, owner):
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
                    "SELECT coalesce(sum(coalesce(octet_length(rows), 0) + pg_column_size(outcome)), 0)"
                    " FROM fencepost.idempotency"
                ).fetchone()
                click.echo(f"{name:30} {answer.status_code:6} {len(answer.content):14,} {kept[0] if kept else 0:12,}")


CONNECTIONS: Final = 1015
SECRET: Final = "s" * 40
OURS: Final = 2**47 + 10**9
"""From here on ids have the form of a lease's, and are none's."""
NO_LEASES: Final = {
    "renew, no id": ("POST", "/v1/leases/{}/renew", 10**9), "renew": ("POST", "/v1/leases/{}/renew", OURS),
    "mint": ("POST", "/v1/leases/{}/tokens", OURS), "release": ("DELETE", "/v1/leases/{}", OURS),
    "look": ("GET", "/v1/leases/{}", OURS), "renew at a source": ("POST", "/v1/leases/other-{}/renew", OURS),
}  # fmt: skip
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


def _flooding(where: tuple[str, int], attack: str, answers: "multiprocessing.Queue[Counter[str]]") -> None:
    answers.put(asyncio.run(_flood(where, *NO_LEASES[attack])))


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


def renewals() -> None:
    """One caller asks about leases that are not there, over very many connections, while another renews its own.

    Each attack comes from 127.0.0.1 in a process of its own, over 1,015 connections, and lasts some seconds. A caller
    at 127.0.0.2 renews a lease of three seconds four times a second, as long as it has it.
    """
    click.echo(f"{'':18} {'answers to the attack':40} {'renewals, by answer':28} {'slowest, s':>10}")
    # Of a lock service that is the database itself; it is never asked.
    options = ("--sources", "other=postgres-advisory:")
    with server_directory() as directory, attacked(directory, "", options=options) as (gateway, _, _owner):
        split = urlsplit(gateway.url)
        where = (split.hostname or "", split.port or 0)
        for name in NO_LEASES:
            answers: multiprocessing.Queue[Counter[str]] = multiprocessing.Queue()
            flood = multiprocessing.Process(target=_flooding, args=(where, name, answers))
            flood.start()
            kept, slowest = _keep(gateway.url, name, time.monotonic() + SECONDS)
            flooded = answers.get()
            flood.join()
            theirs = ", ".join(f"{number} x {status}" for status, number in flooded.most_common())
            ours = ", ".join(f"{number} x {status}" for status, number in kept.most_common())
            click.echo(f"{name:18} {theirs:40} {ours:28} {slowest:10.2f}")


NAMES: Final[dict[str, Callable[[], None]]] = {
    "unsent": lambda: asyncio.run(unsent()), "bodies": bodies, "held": held, "letters": letters, "records": records,
    "renewals": renewals,
}  # fmt: skip

if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        NAMES[chosen]()
