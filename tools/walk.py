"""Print the files that a request passes in the gateway: how many, in which order, and how often it comes back to one.

    python -m tools.walk [patch] [get] [lease] [batch] [--order]

A gateway runs in this process, on an embedded PostgreSQL with the demo's tables. Of nine walks of a request that no
background task has crossed the shortest one is counted. Files are those of app/fencepost.

- A *stay* is an unbroken stretch of execution in one file. A call into another file ends it, so does the return to the
  caller's, and an `await` that goes on elsewhere.
- A *return* is a stay in a file that was left before.

An `await` that only waits is no stay: a coroutine that goes on after it counts where it goes on.
"""

import asyncio
import dis
import inspect
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click
import uvicorn

import fencepost
from fencepost.server.ops import demo
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.server.serve import create_app
from fencepost.server.serving.protocol import GuardedProtocol
from fencepost.server.settings import Settings

APP: Final = str(Path(fencepost.__file__).parent) + "/"
TRIES: Final = 9
_YIELD: Final = dis.opmap["YIELD_VALUE"]


class Walk:
    """What `sys.setprofile` calls while one request is answered."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        self.crossed = False
        """Whether a task ran that had been there before the request: what the gateway does now and then."""
        self._before = asyncio.all_tasks() - {asyncio.current_task()}
        self._known: dict[int, FrameType] = {}
        """The frames that have been entered; kept, so that no other frame gets the id of one."""
        self._resumed: str | None = None
        """The file of the coroutine that goes on last: of a chain of awaits the innermost one."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note where execution is after this event."""
        self.crossed = self.crossed or asyncio.current_task() in self._before
        if event == "call":
            self._enter(frame)
        elif event == "return":
            self._leave(frame)

    def _enter(self, frame: FrameType) -> None:
        file = _file(frame)
        if file is None:
            return
        if id(frame) in self._known:
            self._resumed = file
            return
        self._known[id(frame)] = frame
        self._settle()
        self._stay(file)

    def _leave(self, frame: FrameType) -> None:
        if _file(frame) is None:
            return
        self._known.setdefault(id(frame), frame)
        self._settle()
        if _waits(frame):
            return
        caller = frame.f_back
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        if caller is not None:
            self._stay(_file(caller))

    def _settle(self) -> None:
        if self._resumed is not None:
            self._stay(self._resumed)
            self._resumed = None

    def _stay(self, file: str | None) -> None:
        if file is not None and self.stays[-1:] != [file]:
            self.stays.append(file)

    @property
    def figures(self) -> tuple[int, int, int]:
        """Files, stays, returns."""
        files = len(set(self.stays))
        return files, len(self.stays), len(self.stays) - files


def _file(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name.removeprefix(APP) if name.startswith(APP) else None


def _waits(frame: FrameType) -> bool:
    """Whether a coroutine is left at an `await`, and comes back to it. A generator hands its value to the caller."""
    code = frame.f_code
    asynchronous = code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
    return bool(asynchronous) and code.co_code[frame.f_lasti] == _YIELD


class Gateway:
    """A gateway in this event loop, and a connection of a client to it. The client is no file of app/fencepost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.token = demo.FIRST_TOKEN + 10

    async def ask(self, method: str, path: str, body: str = "", headers: str = "") -> str:
        """Send a request, and return its answer whole."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        lower = answer.lower()
        if b"transfer-encoding: chunked" in lower:
            return (answer + await self.reader.readuntil(b"\r\n0\r\n\r\n")).decode()
        length = int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        return (answer + await self.reader.readexactly(length)).decode()

    async def patch(self) -> str:
        self.token += 1
        headers = f"X-Fence-Token: {self.token}\r\nContent-Type: application/json\r\n"
        return await self.ask("PATCH", "/v1/data/orders/order-123", '{"note": "walked"}', headers)

    async def get(self) -> str:
        return await self.ask("GET", "/v1/data/orders/order-123")

    async def lease(self) -> str:
        self.token += 1
        body = f'{{"lock": "walk-{self.token}", "owner": "walk", "ttl_ms": 60000, "claim": ["accounts/account-123"]}}'
        return await self.ask("POST", "/v1/leases", body, "Content-Type: application/json\r\n")

    async def batch(self) -> str:
        self.token += 1
        line = (
            f'{{"method": "PATCH", "path": "orders/order-124", "token": {self.token}, "body": {{"note": "walked"}}}}\n'
        )
        return await self.ask("POST", "/v1/batch", line, "Content-Type: application/x-ndjson\r\n")


REQUESTS: Final[dict[str, Callable[[Gateway], Awaitable[str]]]] = {
    "patch": Gateway.patch,
    "get": Gateway.get,
    "lease": Gateway.lease,
    "batch": Gateway.batch,
}


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[Gateway]:
    """Run a gateway until the block ends."""
    settings = Settings.model_validate({"database_url": url, "port": 0, "log_level": "error"})
    config = uvicorn.Config(
        create_app(settings),
        http=GuardedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        port=0,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            task.result()
            raise RuntimeError("the gateway did not start")
        await asyncio.sleep(0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.servers[0].sockets[0].getsockname()[1])
    try:
        yield Gateway(reader, writer)
    finally:
        writer.close()
        server.should_exit = True
        await task


async def walk(url: str, names: Sequence[str]) -> dict[str, Walk]:
    """Walk each request on a migrated database. Returns the shortest of `TRIES` walks that nothing has crossed."""
    await demo.load(url)
    found: dict[str, Walk] = {}
    async with gateway(url) as asked:
        for name in names:
            walks: list[Walk] = []
            while len(walks) < TRIES:
                walked = await _one(asked, REQUESTS[name])
                walks += [] if walked.crossed else [walked]
            found[name] = min(walks, key=lambda each: len(each.stays))
    return found


async def _one(asked: Gateway, request: Callable[[Gateway], Awaitable[str]]) -> Walk:
    traced = Walk()
    sys.setprofile(traced)
    try:
        answer = await request(asked)
    finally:
        sys.setprofile(None)
    if not answer.startswith("HTTP/1.1 20"):
        raise RuntimeError(f"the gateway did not do it: {answer}")
    return traced


def on_a_server_of_its_own(names: Sequence[str]) -> dict[str, Walk]:
    """Walk on an embedded PostgreSQL, which ends then."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # PostgreSQL may run as another user
        with PostgresServer(bin_dir=embedded_bin_dir(), data_dir=Path(directory, "data")) as server:
            asyncio.run(upgrade(server.url))
            return asyncio.run(walk(server.url, names))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(REQUESTS)))
@click.option("--order", is_flag=True, help="Print each stay, in order.")
def main(names: tuple[str, ...], *, order: bool) -> None:
    """Print files, stays and returns of each of NAMES; of all without a name."""
    for name, walked in on_a_server_of_its_own(names or tuple(REQUESTS)).items():
        files, stays, returns = walked.figures
        click.echo(f"{name}: {files} files, {stays} stays, {returns} returns")
        if order:
            seen: set[str] = set()
            for file in walked.stays:
                click.echo(f"    {file}" + (" (again)" if file in seen else ""))
                seen.add(file)


if __name__ == "__main__":
    main()
