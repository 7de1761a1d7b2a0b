"""The Redis server of a queue: each request once, within a time limit.

Nothing is repeated here but what the server says it has not done: a script that it does not remember, and a request
that belongs to another node of its cluster. All keys of a queue are in one slot, so one node has them all, and what a
request needs is a connection to that one. Where the URL names several servers, the next one is asked after one could
not be reached or turned out to be a replica.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fencepost.server.locks.source import REQUEST_TIMEOUT
from fencepost.server.locks.source_url import Host, SourceUrl
from fencepost.server.queues.log import LogUnavailableError, LogUnknownError
from fencepost.server.queues.redis.scripts import Script
from fencepost.server.queues.redis.url import CA, DB, FSYNC, REPLICAS, WAIT_MS

AT_ONCE: Final = 32
"""Connections to one server at most. Requests are short, so more of them wait for a moment."""
_HOPS: Final = 5
"""How often a request is sent on to another node of a cluster."""

_SCRIPT_PLACE: Final = re.compile(r",? ?script: [0-9a-f]{40}, on @user_script:[0-9]+\.?")
_REFUSALS: Final = (
    redis_errors.BusyLoadingError,
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
)
"""Answers that the library takes for broken connections: nothing was done."""
Word = str | bytes | int | float


class RedisRefusedError(LogUnavailableError):
    """The server answered with an error, and did nothing."""


class RedisServer:
    """Connections to the server of a queue. `name` is what messages call it."""

    def __init__(self, where: SourceUrl) -> None:
        self._where = where
        self._hosts = where.hosts
        self._next = 0
        self._pools: dict[Host, Any] = {}
        self._connect(where.hosts[0])

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.disconnect()

    async def run(self, script: Script, keys: Sequence[str], *values: Word, about: str, durable: bool = False) -> Any:
        """Run a script once and return what it gives.

        about: what it is asked for, for messages. durable: its writes have to be where the queue's settings ask for.
        Raises LogUnavailableError: nothing was done; LogUnknownError: it may have been done.
        """
        waits = self._waits() if durable else []
        answers = await self._follow([("EVALSHA", script.sha, len(keys), *keys, *values), *waits], about)
        if isinstance(answers[0], redis_errors.NoScriptError):
            answers = await self._follow([("EVAL", script.text, len(keys), *keys, *values), *waits], about)
        self._refused(answers[0], about)
        for wait, answer in zip(waits, answers[1:], strict=True):
            self._must_be_durable(wait, answer, about)
        return answers[0]

    async def command(self, *words: Word, about: str, blocks_s: float = 0) -> Any:
        """Send one command; `blocks_s`: how long the server itself may wait. Raises as `run` does."""
        (answer,) = await self._follow([words], about, blocks_s)
        self._refused(answer, about)
        return answer

    async def _follow(self, commands: Sequence[Sequence[Word]], about: str, blocks_s: float = 0) -> list[Any]:
        """Send commands over one connection, to the node of a cluster that has their keys."""
        for _ in range(_HOPS):
            answers = await self._exchange(commands, about, blocks_s)
            moved = next((answer for answer in answers if isinstance(answer, redis_errors.MovedError)), None)
            if moved is None:
                return answers
            self._connect(Host(moved.host or self.host.name, moved.port))
        raise LogUnavailableError(f"{self.name} sends {about} from one node of its cluster to the next, {_HOPS} times")

    async def _exchange(self, commands: Sequence[Sequence[Word]], about: str, blocks_s: float) -> list[Any]:
        pool, connection = self._pool, await self._connection(about)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT + blocks_s):
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [await _answer(connection) for _ in commands]
        except _REFUSALS as error:
            raise RedisRefusedError(f"{self.name} refused {about}: {_reason(error)}") from error
        except (TimeoutError, redis_errors.TimeoutError) as error:
            await connection.disconnect(nowait=True)
            raise LogUnknownError(
                f"{self.name} did not answer within {REQUEST_TIMEOUT + blocks_s:g} s when asked for {about}"
            ) from error
        except (redis_errors.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise LogUnknownError(f"{self.name} gave no answer about {about}: {_reason(error)}") from error
        except BaseException:  # the answer is still to come: no other call must get it
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    async def _connection(self, about: str) -> Any:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                return await self._pool.get_connection()
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            self._try_another()
            raise LogUnavailableError(f"{self.name} cannot be asked for {about}: {_reason(error)}") from error

    def _connect(self, host: Host) -> None:
        self.host, self.name = host, f"Redis at {host}"
        if host not in self._pools:
            self._pools[host] = _pool(self._where, host)
        self._pool = self._pools[host]

    def _try_another(self) -> None:
        """Let the next request go to the next server of the URL; to the URL's own, where a cluster had sent us on."""
        self._next = (self._next + 1) % len(self._hosts)
        if self._hosts[self._next] != self.host:
            self._connect(self._hosts[self._next])

    def _waits(self) -> list[tuple[str | int, ...]]:
        """What has to follow a write over its own connection, before it counts."""
        where = self._where
        waits: list[tuple[str | int, ...]] = []
        if where[REPLICAS]:
            waits.append(("WAIT", where[REPLICAS], where[WAIT_MS]))
        if where[FSYNC]:
            waits.append(("WAITAOF", 1, 0, where[WAIT_MS]))
        return waits

    def _must_be_durable(self, wait: Sequence[str | int], answer: Any, about: str) -> None:
        if isinstance(answer, redis_errors.ResponseError):
            raise LogUnknownError(f"{self.name} did {about}, but refused {wait[0]}: {_reason(answer)}")
        had = int(answer[0] if isinstance(answer, list) else answer)
        if had < int(wait[1]):
            what = "its journal was not on disk" if wait[0] == "WAITAOF" else f"{had} of {wait[1]} replicas had it"
            raise LogUnknownError(f"{self.name} did {about}, but {what} within {self._where[WAIT_MS]} ms")

    def _refused(self, answer: Any, about: str) -> None:
        """Raise if the answer is an error: Redis gives one in place of doing anything."""
        if isinstance(answer, redis_errors.RedisError):
            if isinstance(answer, redis_errors.ReadOnlyError):
                self._try_another()
            raise RedisRefusedError(f"{self.name} refused {about}: {_reason(answer)}") from answer


def _pool(where: SourceUrl, host: Host) -> Any:
    encrypted = where.scheme == "rediss"
    tls: dict[str, Any] = {"ssl_ca_certs": where[CA]} if encrypted else {}
    return BlockingConnectionPool(
        max_connections=AT_ONCE,
        timeout=REQUEST_TIMEOUT,
        connection_class=SSLConnection if encrypted else Connection,
        host=host.name,
        port=host.port,
        db=where[DB],
        username=where.user,
        password=where.password,
        # With a limit the library uses wait_for, which in Python 3.11 may swallow a cancellation: `_exchange` has one.
        socket_timeout=None,
        socket_connect_timeout=REQUEST_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,
        **tls,
    )


async def _answer(connection: Any) -> Any:
    """Read one answer; an error that the server gives is one. The time limit is the caller's."""
    try:
        return await connection.read_response(disable_decoding=True, timeout=math.inf)
    except redis_errors.ResponseError as error:
        return error


def _reason(error: Exception) -> str:
    return _SCRIPT_PLACE.sub("", str(error)).rstrip(". ") or type(error).__name__
