"""Real Redis servers, for locks in one (redis) and in a majority of several (redlock)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis.asyncio
from tests.support.servers import or_skipped

from fencepost.testing.servers.lock_services import redis as redis_service
from fencepost.testing.servers.processes import free_port
from fencepost.testing.servers.server import Server


@contextmanager
def redis_server(directory: Path, port: int, *settings: str) -> Iterator[Server]:
    """Run a Redis server; skips where it is not installed. With no settings it is one that a doctor finds healthy."""
    with or_skipped():
        server = redis_service(directory, *settings, port=port).server
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.crash()  # it would refuse to be stopped while it writes the first file of a journal


async def command(port: int, *words: str | int) -> Any:
    """Send one command, as an operator would."""
    client: Any = redis.asyncio.Redis(port=port)
    async with client:
        return await client.execute_command(*words)


class RedisBench:
    """One or several servers; what is done is done to all of them."""

    dsn = ""

    def __init__(self, name: str, url: str, servers: Sequence[Server], ports: Sequence[int], keys: str) -> None:
        self.name, self.url, self.servers, self.ports, self._keys = name, url, servers, ports, keys

    async def crash(self) -> None:
        for server in self.servers:
            server.crash()

    async def restart(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            await server.serves()

    async def pause(self) -> None:
        for server in self.servers:
            server.pause()

    async def resume(self) -> None:
        for server in self.servers:
            server.resume()
        for port in self.ports:
            await command(port, "PING")

    async def spoil(self, lock: str) -> None:
        for port in self.ports:
            await command(port, "RPUSH", f"{self._keys}{lock}", "not a lock")

    async def waiting(self, lock: str) -> int:
        raise NotImplementedError("no client queues in Redis")


@contextmanager
def running(directory: Path) -> Iterator[RedisBench]:
    port = free_port()
    with redis_server(directory, port) as server:
        yield RedisBench("redis", f"redis://127.0.0.1:{port}/0", [server], [port], "fencepost:lock:")


@contextmanager
def running_several(directory: Path, count: int) -> Iterator[tuple[list[Server], list[int]]]:
    """Run several servers that know nothing of each other."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        yield (
            [stack.enter_context(redis_server(directory / str(number), port)) for number, port in enumerate(ports)],
            ports,
        )
