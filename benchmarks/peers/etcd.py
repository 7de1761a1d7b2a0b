"""etcd: the value is the token in 19 digits and the status, so that a transaction can compare it as bytes.

Python users mostly go through the JSON gateway. etcd's own load tool cannot compare: `txn-put` is a transaction with
nothing but the put in it, so it does a little less than the fenced write.
"""

import base64
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.cells import Cell
from benchmarks.compiled import BUILD
from benchmarks.database import Marks
from benchmarks.load import HOST, Result
from benchmarks.peers import Write
from benchmarks.processes import BenchmarkError, run, running
from benchmarks.walk import MARK_AT_FIRST, OVER_ROWS
from fencepost.testing.servers.processes import free_port

_PUTS: Final = 128
"""That a transaction may have."""
_TOKEN_DIGITS: Final = 19
_TRIED: Final = 1_000
"""Requests whose rate shows how many a measurement takes: the tool counts them, and knows no time."""


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run one node on the rows of every cell before."""
    data = directory / "etcd"
    new = not data.exists()
    port, peer_port = free_port(), free_port()
    client, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peer_port}"
    command = [
        *("etcd", "--name", "one", "--data-dir", str(data), "--logger", "zap", "--log-outputs", "stdout"),
        *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer),
        *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"),
    ]
    with running(command, directory / "etcd.log", "serving client traffic insecurely"):
        if new:
            _fill(port)
        yield port


def _fill(port: int) -> None:
    keys = range(OVER_ROWS.first_key, OVER_ROWS.first_key + OVER_ROWS.rows)
    with _client(port) as client:
        for first in range(0, len(keys), _PUTS):
            puts = [{"requestPut": _put(key, MARK_AT_FIRST)} for key in keys[first : first + _PUTS]]
            client.post("/v3/kv/txn", json={"success": puts}).raise_for_status()


def _client(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=20)


def _put(key: int, token: int) -> dict[str, str]:
    return {"key": _base64(f"order-{key}"), "value": _base64(f"{token:0{_TOKEN_DIGITS}} paid")}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@asynccontextmanager
async def open_writers(port: int, count: int) -> AsyncIterator[Sequence[Write]]:
    """Open httpx clients, with a connection for each."""
    async with AsyncExitStack() as opened:
        url = f"http://{HOST}:{port}"
        clients = [httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) for _ in range(count)]
        yield [_writer(await opened.enter_async_context(client)) for client in clients]


def _writer(client: httpx.AsyncClient) -> Write:
    async def write(key: int, token: int) -> bool:
        put = _put(key, token)
        compare = {"target": "VALUE", "result": "LESS", "key": put["key"], "value": put["value"]}
        answer = await client.post("/v3/kv/txn", json={"compare": [compare], "success": [{"requestPut": put}]})
        return bool(answer.raise_for_status().json().get("succeeded"))

    return write


def marks_above(port: int, token: int) -> Marks:
    """Look at all rows."""
    every: dict[str, Any] = {"key": _base64("order-"), "range_end": _base64("order.")}
    with _client(port) as client:
        found = client.post("/v3/kv/range", json=every).raise_for_status().json()["kvs"]
    above = [int(base64.b64decode(one["value"])[:_TOKEN_DIGITS]) - token for one in found]
    return Marks(sum(one > 0 for one in above), sum(one for one in above if one > 0))


def version() -> str:
    """Ask the program."""
    found = re.search(r"etcd Version: (\S+)", run(["etcd", "--version"], within=10))
    return f"etcd {found[1] if found else '?'}"


def own_tool(cell: Cell, port: int, seconds: float, first_token: int) -> tuple[Result, list[str]]:  # noqa: ARG001
    """Run `benchmark txn-put`, with a gRPC connection for each client, over as many keys as there are rows."""
    with _client(port) as client:
        before = _revision(client)
        rate = _number(r"Requests/sec:\s+([\d.]+)", _benchmark(cell, port, _TRIED))
        count = max(_TRIED, int(rate * seconds))
        output = _benchmark(cell, port, count)
        written = _revision(client) - before
    faults = [] if written == _TRIED + count else [f"{_TRIED + count} writes answered, {written} revisions"]
    result: Result = {
        "rate": _number(r"Requests/sec:\s+([\d.]+)", output),
        "p50_ms": _number(r"50% in ([\d.]+) secs", output) * 1000,
        "p99_ms": _number(r"99% in ([\d.]+) secs", output) * 1000,
        "statuses": {},
        "accepted": _TRIED + count,
        "rows": 0,
        "token_sum": 0,
        "faults": {},
        "generator_cpu": 0.0,
    }
    return result, faults


def _benchmark(cell: Cell, port: int, count: int) -> str:
    clients = str(cell.connections)
    return run(
        [
            *(BUILD / "etcd-benchmark", f"--endpoints={HOST}:{port}", "--conns", clients, "--clients", clients),
            *("txn-put", "--total", str(count), "--key-size", "12", "--val-size", "24", "--precise"),
            *("--key-space-size", str(OVER_ROWS.rows)),
        ],
        within=120,
        logs=True,
    )


def _revision(client: httpx.Client) -> int:
    """Return the store's revision: each transaction that writes makes one."""
    answer = client.post("/v3/kv/range", json={"key": _base64("none")}).raise_for_status().json()
    return int(answer["header"]["revision"])


def _number(pattern: str, output: str) -> float:
    found = re.search(pattern, output)
    if found is None:
        raise BenchmarkError(f"etcd's benchmark did not print {pattern}: {output}")
    return float(found[1])
