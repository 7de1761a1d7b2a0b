"""`python -m benchmarks.work`: how many jobs of a table are taken, and taken and finished, in a second, side by side.

takes: jobs are taken and not finished. Each is "running" from then on, so that no later take has to pass it by: the
query and procrastinate do this in the take itself, and a trigger of the table does it where Fencepost claims the row.
cycle: each job is taken, set to done, and, with Fencepost, its lease released: three requests by HTTP beside two
transactions. Every service has a table of ROWS rows of its own, on one PostgreSQL; the first DONE of them are done.
held: what one take costs while so many rows at the head are held by others, and without the rows that are done.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any, Final

import asyncpg
import click
import uvloop

from benchmarks import load, pgbench
from benchmarks.__main__ import make_bench
from benchmarks.compiled import BUILD, compiled
from benchmarks.cpu import Cpu
from benchmarks.crowds import Connection
from benchmarks.drivers import Bench
from benchmarks.machine import busy, describe, source_digest
from benchmarks.processes import BenchmarkError, gateway
from benchmarks.report import RESULTS, summary
from benchmarks.sized import execute
from fencepost.server.ops.protect import protect

ROWS: Final = 1_000_000
DONE: Final = 900_000
CONNECTIONS: Final = 64
HELD: Final = (0, 1, 64, 1000)
"""How many rows at the head others hold."""
LATEST: Final = RESULTS / "work.json"
FENCEPOST: Final = "fencepost, HTTP"
QUERY: Final = "SKIP LOCKED query, pgbench"
PROCRASTINATE: Final = "procrastinate, pgbench"
LOADS: Final = ("takes", "cycle")
SCHEMA: Final = BUILD / "procrastinate.sql"
"""`setup` gets it."""
_PARTS: Final = ("fencepost_us", "postgresql_us", "load_us")
_WARMUP: Final = 0.5  # seconds
_TRIED: Final = 300
_CREATED, _OK, _NO_CONTENT = 201, 200, 204
_TTL_MS: Final = 600_000

_CREATE: Final = """
CREATE TABLE {table} (id bigint PRIMARY KEY, status text NOT NULL, priority int NOT NULL,
  created_at timestamptz NOT NULL, payload text NOT NULL, locked_by text, locked_until timestamptz)
  WITH (fillfactor = 70);
INSERT INTO {table} SELECT n, CASE WHEN n <= {done} THEN 'done' ELSE 'new' END, n % 4, now() - n * interval '1 s',
  'a job of some bytes' FROM generate_series(1, {rows}) n;
CREATE INDEX ON {table} (priority DESC, created_at) WHERE status = 'new';
"""
_FILL_PROCRASTINATE: Final = f"""
INSERT INTO procrastinate_workers DEFAULT VALUES;
SET session_replication_role = replica;
INSERT INTO procrastinate_jobs (id, queue_name, task_name, priority, status) SELECT n, 'default', 'task', n % 4,
  (CASE WHEN n <= {DONE} THEN 'succeeded' ELSE 'todo' END)::procrastinate_job_status FROM generate_series(1, {ROWS}) n;
"""
_RUNNING: Final = """
CREATE OR REPLACE FUNCTION running() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN NEW.status := 'running'; RETURN NEW; END $$;
CREATE TRIGGER running BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.status = 'new' AND NEW.status = 'new')
  EXECUTE FUNCTION running()
"""
_TAKE_BY_QUERY: Final = """UPDATE query_jobs SET status = 'running', locked_by = 'worker-' || :client_id,
 locked_until = now() + interval '30 s' WHERE id = (SELECT id FROM query_jobs WHERE status = 'new'
 ORDER BY priority DESC, created_at FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING *"""
_TAKE_BY_PROCRASTINATE: Final = "SELECT * FROM procrastinate_fetch_job_v2(NULL, 1)"
_FINISH_QUERY: Final = "UPDATE query_jobs SET status = 'done', locked_by = NULL WHERE id = :id"
_FINISH_PROCRASTINATE: Final = "SELECT procrastinate_finish_job_v1(:id, 'succeeded', false)"
_SCRIPTS: Final = {
    (QUERY, "takes"): f"{_TAKE_BY_QUERY};\n",
    (QUERY, "cycle"): f"{_TAKE_BY_QUERY} \\gset\n{_FINISH_QUERY};\n",
    (PROCRASTINATE, "takes"): f"{_TAKE_BY_PROCRASTINATE};\n",
    (PROCRASTINATE, "cycle"): f"{_TAKE_BY_PROCRASTINATE} \\gset\n{_FINISH_PROCRASTINATE};\n",
}
_NEXT: Final = json.dumps(
    {
        "next": {"table": "jobs", "where": "status=eq.new", "order": "priority.desc,created_at"},
        "owner": "worker",
        "ttl_ms": _TTL_MS,
    }
)
_TAKE: Final = (
    "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_NEXT)}\r\n\r\n{_NEXT}"
)
# Each cell begins with the same rows to take, no lease, and a table without dead rows.
_AGAIN: Final = {
    FENCEPOST: (
        "SET session_replication_role = replica",
        "DROP TRIGGER IF EXISTS running ON jobs",
        "TRUNCATE fencepost.leases, fencepost.locks CASCADE",
        f"UPDATE jobs SET status = 'new' WHERE id > {DONE} AND status <> 'new'",
        "VACUUM ANALYZE jobs",
    ),
    QUERY: (
        f"UPDATE query_jobs SET status = 'new' WHERE id > {DONE} AND status <> 'new'",
        "VACUUM ANALYZE query_jobs",
    ),
    PROCRASTINATE: (
        "TRUNCATE procrastinate_events",
        f"UPDATE procrastinate_jobs SET status = 'todo', worker_id = NULL WHERE id > {DONE} AND status <> 'todo'",
        "VACUUM ANALYZE procrastinate_jobs",
    ),
}


class Worker:
    """Takes jobs by HTTP, one after another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lease: dict[str, Any] = {}

    async def take(self) -> None:
        """Take the next job."""
        status, answer = await self._connection.ask("POST /v1/leases", json.loads(_NEXT))
        if status != _CREATED:
            raise BenchmarkError(f"no job was taken: {status} {answer!r}")
        self._lease = json.loads(answer)

    async def finish(self) -> None:
        """Set it to done."""
        line = f"PATCH /v1/data/{self._lease['lock']}"
        status, answer = await self._connection.ask(line, {"status": "done"}, X_Fence_Token=self._lease["token"])
        if status != _OK:
            raise BenchmarkError(f"{line}: {status} {answer!r}")

    async def release(self) -> None:
        """End its lease."""
        await self._connection.release(self._lease)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def _by_http(bench: Bench, kind: str) -> tuple[float, dict[str, float]]:
    if kind == "takes":
        asyncio.run(execute(bench.database.url, _RUNNING))
        compiled(load.SOURCE)
    with gateway(bench.database.url, bench.directory, workers=2) as port:
        cpu, begin = Cpu(), time.process_time()
        if kind == "takes":
            made = load.generate(
                load.Plan(port, _TAKE, CONNECTIONS, 1, False, _CREATED, '"attempt":1', _WARMUP, bench.seconds)
            )
            if set(made["statuses"]) != {str(_CREATED)} or made["faults"]:
                raise BenchmarkError(f"takes: {made}")
            return made["rate"], cpu.per(sum(made["statuses"].values()))
        rate, count = uvloop.run(_cycles(port, bench.seconds))
        return rate, {**cpu.per(count), "load_us": 1e6 * (time.process_time() - begin) / count}


async def _cycles(port: int, seconds: float) -> tuple[float, int]:
    """Give the rate after the warm-up, and the number of all cycles."""
    begin = time.perf_counter() + _WARMUP
    counted = every = 0

    async def work() -> None:
        nonlocal counted, every
        worker = Worker(await Connection.open(port))
        while (now := time.perf_counter()) < begin + seconds:
            await worker.take()
            await worker.finish()
            await worker.release()
            every += 1
            counted += now >= begin
        worker.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return counted / (time.perf_counter() - begin), every


def _by_pgbench(bench: Bench, service: str, kind: str) -> tuple[float, dict[str, float]]:
    cpu = Cpu()
    made = pgbench.measure_script(
        bench.bin_dir, bench.directory, bench.database.url, _SCRIPTS[service, kind], CONNECTIONS, bench.seconds
    )
    if made["faults"]:
        raise BenchmarkError(f"{service}, {kind}: {made['faults']}")
    return made["rate"], cpu.per(made["accepted"])


async def _held(url: str, port: int, count: int) -> float:
    """Give the median of what a take took, in ms, while so many rows at the head are held."""
    holder, one = await Connection.open(port), Worker(await Connection.open(port))
    wanted = json.loads(_NEXT)
    while count:
        wanted["next"]["limit"] = most = min(count, 64)
        status, answer = await holder.ask("POST /v1/leases", wanted)
        if status != _CREATED:
            raise BenchmarkError(f"rows were not held: {status} {answer!r}")
        count -= most
    await execute(url, "VACUUM ANALYZE jobs")
    took = list[float]()
    for _ in range(_TRIED):
        began = time.perf_counter()
        await one.take()
        took.append((time.perf_counter() - began) * 1000)
        await one.release()
    holder.close()
    one.close()
    return round(statistics.median(took), 3)


def _one_take(bench: Bench) -> dict[str, float]:
    """Measure a take by one connection; last without the rows that are done."""
    made, url = dict[str, float](), bench.database.url
    for held, done in (*((held, DONE) for held in HELD), (0, 0)):
        asyncio.run(execute(url, *_AGAIN[FENCEPOST]))
        if not done:
            without = f"DELETE FROM jobs WHERE id <= {DONE}"
            asyncio.run(execute(url, "SET session_replication_role = replica", without, "VACUUM FULL ANALYZE jobs"))
        with gateway(url, bench.directory) as port:
            made[f"{held} held, {done} done"] = uvloop.run(_held(url, port, held))
    return made


async def _make(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for table in ("jobs", "query_jobs"):
            await connection.execute(_CREATE.format(table=table, done=DONE, rows=ROWS))
        await protect(connection, "jobs")
        if SCHEMA.exists():
            await connection.execute(SCHEMA.read_text())
            await connection.execute(_FILL_PROCRASTINATE)
    finally:
        await connection.close()


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=3, show_default=True, help="How long each cell is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the server keeps its data; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=LATEST, help="Where the result is written.")
def main(seconds: int, rounds: int, directory: Path, output: Path) -> None:
    """Measure on this machine, on loopback only, with a server of its own."""
    services = [FENCEPOST, QUERY, *([PROCRASTINATE] if SCHEMA.exists() else [])]
    if PROCRASTINATE not in services:
        click.echo("not measured: procrastinate (benchmarks/setup gets its schema)", err=True)
    cells = [(service, kind) for kind in LOADS for service in services]
    rates: dict[tuple[str, str], list[float]] = {cell: [] for cell in cells}
    spent: dict[tuple[str, str], list[dict[str, float]]] = {cell: [] for cell in cells}
    with make_bench(directory, 0, seconds) as bench:
        asyncio.run(_make(bench.database.url))
        about: dict[str, Any] = {"machine": describe(bench.bin_dir, bench.directory), "source": source_digest()}
        about |= {"postgresql": asyncio.run(bench.database.settings()), "rounds": rounds, "seconds": seconds}
        noise = list[float]()
        for number in range(rounds):
            for service, kind in cells if number % 2 == 0 else reversed(cells):
                asyncio.run(execute(bench.database.url, *_AGAIN[service], "CHECKPOINT"))
                noise.append(busy())
                measured = _by_http(bench, kind) if service == FENCEPOST else _by_pgbench(bench, service, kind)
                rates[service, kind].append(measured[0])
                spent[service, kind].append(measured[1])
                click.echo(f"round {number + 1} of {rounds}  {service:28}{kind:8}{measured[0]:9,.0f}/s", err=True)
        one_take = _one_take(bench)
    made = {**about, "others_used": max(noise), "ms_of_one_take": one_take, **_report(rates, spent)}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made, indent=1) + "\n")
    click.echo(_table(made))


def _report(
    rates: dict[tuple[str, str], list[float]], spent: dict[tuple[str, str], list[dict[str, float]]]
) -> dict[str, Any]:
    return {
        "cells": [
            {
                "service": service,
                "load": kind,
                "rate": summary(rates[service, kind], 1),
                **{part: summary([one[part] for one in each], 1) for part in each[0] if any(one[part] for one in each)},
            }
            for (service, kind), each in spent.items()
        ],
        "ratios": {
            f"{kind}: fencepost by {other.partition(',')[0]}": summary(
                [a / b for a, b in zip(rates[FENCEPOST, kind], rates[other, kind], strict=True)], 3
            )
            for other, kind in rates
            if other != FENCEPOST
        },
    }


def _table(made: dict[str, Any]) -> str:
    lines = [f"{'median of ' + str(made['rounds']) + ' round(s)':38}{'jobs/s':>9}   µs a job of server, database, load"]
    for cell in made["cells"]:
        parts = (
            f"{cell[part]['median']:9.0f}" for part in ("fencepost_us", "postgresql_us", "load_us") if part in cell
        )
        lines.append(f"{cell['service']:30}{cell['load']:8}{cell['rate']['median']:9,.0f} {''.join(parts)}")
    for name, ratio in made["ratios"].items():
        lines.append(f"{name:44}{ratio['median']:6.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")
    lines += [f"one take, {name:24}{ms:8.2f} ms" for name, ms in made["ms_of_one_take"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
