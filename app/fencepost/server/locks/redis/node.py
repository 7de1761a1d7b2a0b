"""One Redis server, as both sources that live in Redis ask it: each request once, within a time limit.

Nothing is repeated here. A request whose answer got lost may have been carried out, and only its asker knows what that
means. The library would repeat on its own for some seconds; that is switched off.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fencepost.server.locks.redis.url import CA
from fencepost.server.locks.source import Holder, SourceError, SourceUnavailableError
from fencepost.server.locks.source_url import Host, SourceUrl

AT_ONCE: Final = 32
"""Connections to one server at most. Requests are short, so more of them wait for a moment."""

# Errors that pass: the server is a replica now, is loading, has lost its replicas, its disk or its memory.
_PASSING: Final = re.compile(r"\b(READONLY|LOADING|NOREPLICAS|MISCONF|OOM|BUSY|MASTERDOWN)\b", re.ASCII)
_REFUSED_LOGIN: Final = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)
# What only a node of a cluster answers: also one that has no slots yet, or has lost some.
_CLUSTER: Final = (
    redis_errors.AskError,
    redis_errors.ClusterCrossSlotError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)
_SCRIPT_PLACE: Final = re.compile(r"\s*script: [0-9a-f]{40}, on @user_script:[0-9]+\.?$")


class RedisNode:
    """Connections to one server of a source. `timeout`: seconds for one request, with connecting and logging in."""

    def __init__(self, where: SourceUrl, host: Host, timeout: float) -> None:
        self.name = f"Redis at {host}"
        self._timeout = timeout
        encrypted = where.scheme == "rediss"
        tls: dict[str, Any] = {"ssl_ca_certs": where[CA]} if encrypted else {}
        pool = BlockingConnectionPool(
            max_connections=AT_ONCE,
            timeout=timeout,
            connection_class=SSLConnection if encrypted else Connection,
            host=host.name,
            port=host.port,
            db=int(where.path.strip("/") or 0),
            username=where.user,
            password=where.password,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
            **tls,
        )
        self._redis: Any = Redis.from_pool(pool)  # the hints of its commands fit both kinds of client, and so none

    async def close(self) -> None:
        await self._redis.aclose()

    async def run(self, script: str, keys: tuple[str, ...], *values: str | int, about: str) -> Any:
        """Run a script once and return what it gives.

        about: what it is asked for, for messages. Raises SourceUnavailableError when it cannot be asked or its answer
        got lost, SourceError when it refuses.
        """
        return await self.command("EVAL", script, len(keys), *keys, *values, about=about)

    async def command(self, *words: str | int, about: str) -> Any:
        """Send one command. Raises as `run` does."""
        with self._map_errors(about):
            async with asyncio.timeout(self._timeout):
                return await self._redis.execute_command(*words)

    async def run_replicated(
        self, script: str, keys: tuple[str, ...], *values: str | int, about: str, replicas: int, wait_ms: int
    ) -> tuple[Any, int]:
        """Run a script, and return how many replicas had its writes within `wait_ms`. Raises as `run` does."""
        with self._map_errors(about):
            async with asyncio.timeout(self._timeout), self._redis.pipeline(transaction=False) as pipeline:
                # WAIT is about the writes of its own connection, so both go over one.
                pipeline.execute_command("EVAL", script, len(keys), *keys, *values)
                pipeline.execute_command("WAIT", replicas, wait_ms)
                answers = await pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers[0], int(answers[1])

    def of_a_cluster(self) -> SourceError:
        """Make the error of a server that takes no locks, for its keys lie on other nodes."""
        return SourceError(f"{self.name} is a node of a Redis Cluster, which this source does not support")

    @contextmanager
    def _map_errors(self, about: str) -> Iterator[None]:
        """Turn everything that the library raises into a SourceError."""
        try:
            yield
        except TimeoutError as error:
            raise SourceUnavailableError(
                f"{self.name} did not answer within {self._timeout:g} s when asked for {about}"
            ) from error
        except _REFUSED_LOGIN as error:
            raise SourceError(f"{self.name} does not let this user ask for {about}: {_reason(error)}") from error
        except _CLUSTER as error:
            raise self.of_a_cluster() from error
        except (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError) as error:
            raise SourceUnavailableError(f"{self.name} cannot be asked for {about}: {_reason(error)}") from error
        except redis_errors.RedisError as error:
            kind = SourceUnavailableError if _PASSING.search(f"{error.status_code} {error}") else SourceError
            raise kind(f"{self.name} refused {about}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return _SCRIPT_PLACE.sub("", str(error)).rstrip(". ") or type(error).__name__


def unique_value(owner: str) -> str:
    """Make the value of a lock's key: no other hold has the same, and people see whose it is."""
    return f"{secrets.token_hex(16)}:{owner}"


def holder(held: list[Any]) -> Holder:
    """Read value and remaining milliseconds of a lock that is held; another program's value names no owner."""
    value, left_ms = held
    unique, colon, owner = value.decode(errors="replace").partition(":")
    ours = colon and re.fullmatch("[0-9a-f]{32}", unique)
    return Holder(owner if ours else None, left_ms if left_ms >= 0 else None)
