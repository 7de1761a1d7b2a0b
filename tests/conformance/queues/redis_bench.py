"""One Redis server with a journal that is on disk before it answers; each log has a stream name of its own."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.redis_bench import command, redis_server

from fencepost.server.queues.redis import TTL_MS, RedisLog, from_url
from fencepost.server.queues.redis_server import read_url
from fencepost.testing.servers.processes import free_port
from fencepost.testing.servers.server import Server


def log_of(url: str) -> RedisLog:
    return from_url(url)


async def delete_keys(url: str, pattern: str) -> None:
    """Delete all keys of this pattern, as an operator would."""
    port = read_url(url).hosts[0].port
    for key in await command(port, "KEYS", pattern):
        await command(port, "DEL", key.decode())


class RedisQueueBench:
    """See QueueBench."""

    name = "redis"
    handed_over_within_s = TTL_MS / 1000 + 10

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self._numbers = itertools.count(1)

    async def new_log(self, partitions: int) -> str:
        return f"redis://127.0.0.1:{self.port}/orders-{next(self._numbers)}?partitions={partitions}"

    async def make_again(self, url: str) -> None:
        stream = read_url(url).path.removeprefix("/")
        await delete_keys(url, f"fencepost:{{{stream}}}*")
        log = log_of(url)
        await log.state()
        await log.close()

    async def crash(self) -> None:
        self.server.crash()

    async def restart(self) -> None:
        self.server.start()
        await self.server.serves()

    async def pause(self) -> None:
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()
        await command(self.port, "PING")


@contextmanager
def running(directory: Path) -> Iterator[RedisQueueBench]:
    port = free_port()
    with redis_server(directory / "server", port) as server:
        yield RedisQueueBench(server, port)
