"""The reads at the end of a run find what is gone: also a row, or a whole set, that no table lists any longer."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fencepost.testing.checker import Verdict, check
from fencepost.testing.history import Recorder, read
from fencepost.torture.last_reads import read_all, written
from fencepost.torture.merging import merge
from fencepost.torture.tables import Fenced, Kind
from fencepost.torture.workloads import WORKLOADS

PREFIX = "torture_1"


@asynccontextmanager
async def empty_gateway() -> AsyncIterator[str]:
    """Serve tables that are there, and have no rows."""
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the reader at the end hangs up
            while head := await reader.readline():
                await reader.readuntil(b"\r\n\r\n")
                is_row = re.match(rb"GET /v1/data/\w+/", head) is not None
                status, body = (b"404 Not Found", b"{}") if is_row else (b"200 OK", b"[]")
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 2\r\n\r\n%s" % (status, body))
        writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*served)


async def judged(workload: str, directory: Path) -> Verdict:
    """Judge a history whose worker part is in `directory`, after the last reads from a gateway without rows."""
    part, last, whole = directory / "part", directory / "last", directory / "whole"
    with Recorder(last) as recorder:
        async with empty_gateway() as url:
            await read_all([url], PREFIX, WORKLOADS[workload], recorder, written([part]))
    merge([part, last], whole, {})
    return check(read(whole))


@pytest.mark.parametrize(("workload", "kind"), [("fenced-set", "sets"), ("idempotent", "ledger")])
async def test_a_set_that_is_gone_as_a_whole_is_lost(workload: str, kind: Kind, tmp_path: Path) -> None:
    resource = Fenced(PREFIX, kind).resource("s0r0")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w0", op="add", resource=resource, value="a").ok()
    verdict = await judged(workload, tmp_path)
    assert [violation.model for violation in verdict.violations] == ["set"]


async def test_a_row_that_is_gone_is_lost(tmp_path: Path) -> None:
    resource = Fenced(PREFIX, "scoped").resource("k0")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w0", op="write", resource=resource, token=1, value="a").ok()
    verdict = await judged("register", tmp_path)
    assert [violation.model for violation in verdict.violations] == ["register"]
