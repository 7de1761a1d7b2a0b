"""Locks and tokens in one Redis: `SET NX PX` with a unique value, and one counter for all locks.

A grant is one script: it looks whether the lock is free, draws tokens by INCRBY, and sets the lock. So a token is drawn
by the holder of the lock at that moment, tokens rise over all locks, and a hold without a token does not exist. A mint
compares the lock's value and draws in one script, too.

What Redis cannot give: with asynchronous replication a replica that takes over may lack the last grants. Then a lock is
granted twice, and the counter goes back. Fencepost sees the latter when a grant's token is not above the highest known
one, and stops to trust the source (R12); `replicas=` makes it rare.
"""

import asyncio
import random
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fencepost.server.locks.leases import ServiceReleases
from fencepost.server.locks.source import (
    MOST_NATIVE,
    REQUEST_TIMEOUT,
    Capabilities,
    Form,
    Grant,
    Holder,
    Host,
    Option,
    SourceContext,
    SourceError,
    SourceUnavailableError,
    SourceUrl,
    read,
    text,
    whole,
)

# What the URLs of sources that live in Redis may have, Redlock's too.

PREFIX: Final = Option("prefix", text("[!-~]{1,64}", "1 to 64 ASCII characters without spaces"), "fencepost:")
"""What all keys begin with."""
CA: Final[Option[str | None]] = Option("ca", text(), None, only="rediss://")
"""A file of certificates to trust instead of the system's."""
REPLICAS: Final = Option("replicas", whole(0, 99), 0)
WAIT_MS: Final = Option("wait_ms", whole(1, 2000), 500)
NODE_TIMEOUT_MS: Final = Option("node_timeout_ms", whole(1, 1000), 50)

LEAST_NODES: Final = 3
PORT: Final = 6379
DATABASE: Final = re.compile("/?|/[0-9]{1,4}")
"""The path: the number of a database."""

REDIS: Final = Form(
    "redis://[user:password@]host[:port][/database][?option=value&…], or rediss:// with TLS",
    (CA, PREFIX, REPLICAS, WAIT_MS),
    DATABASE,
    PORT,
)
REDLOCK: Final = Form(
    "redlock://[user:password@]host[:port],host[:port],host[:port][,…][/database][?option=value&…]",
    (NODE_TIMEOUT_MS, PREFIX),
    DATABASE,
    PORT,
    least=LEAST_NODES,
    most=99,
)


# The Lua scripts of locks in Redis. Redis runs a script whole: nothing happens in between, and no key expires in it.
#
# A lock is a string key that expires. Its value is unique to the hold, so an owner knows its own. A script that fails
# half way is not rolled back, so each draws numbers before it sets the lock: numbers may be lost, but there is no hold
# without them.

# Numbers in Lua are doubles, exact up to 2^53. Numbers above the limit stay drawn: a counter never goes back.
_DRAW: Final = f"""
local function draw(counter, count)
  local last = redis.call('INCRBY', counter, count)
  if last > {MOST_NATIVE} or last < tonumber(count) then
    return redis.error_reply('ERR the counter stands at ' .. string.format('%.0f', last) ..
      ', and tokens are numbers from 1 to {MOST_NATIVE}')
  end
  return last
end
"""

GRANT: Final = f"""{_DRAW}
-- KEYS lock, counter; ARGV value, TTL in ms, how many tokens.
-- Gives the last token drawn, or value and remaining ms of the hold that is in the way.
local held = redis.call('GET', KEYS[1])
if held then return {{held, redis.call('PTTL', KEYS[1])}} end
local last = draw(KEYS[2], ARGV[3])
if type(last) == 'table' then return last end
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return last
"""

MINT: Final = f"""{_DRAW}
-- KEYS lock, counter; ARGV value, how many tokens. Gives the last token drawn, or nil: the hold is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
return draw(KEYS[2], ARGV[2])
"""

TAKE: Final = """
-- Redlock's, without numbers. KEYS lock; ARGV value, TTL in ms. Gives 1, or value and remaining ms of another's hold.
local held = redis.call('GET', KEYS[1])
if held then return {held, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return 1
"""

EXTEND: Final = """
-- KEYS lock; ARGV value, TTL in ms. Gives 1, or 0: the hold is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

RELEASE: Final = """
-- KEYS lock; ARGV value. Gives how many holds ended.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

LOOK: Final = """
-- KEYS lock. Gives value and remaining ms, or nil: it is free.
local held = redis.call('GET', KEYS[1])
if held then return {held, redis.call('PTTL', KEYS[1])} end
return false
"""


# One Redis server, as both sources that live in Redis ask it: each request once, within a time limit.
#
# Nothing is repeated here. A request whose answer got lost may have been carried out, and only its asker knows what
# that means. The library would repeat on its own for some seconds; that is switched off.

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
        pool = connections_to(where, host, int(where.path.strip("/") or 0), timeout, timeout)
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


def connections_to(where: SourceUrl, host: Host, db: int, timeout: float, answers_within: float | None) -> Any:
    """Make the connections to one server, of locks or of a queue. `timeout`: seconds for connecting and logging in."""
    encrypted = where.scheme == "rediss"
    tls: dict[str, Any] = {"ssl_ca_certs": where[CA]} if encrypted else {}
    return BlockingConnectionPool(
        max_connections=AT_ONCE,
        timeout=timeout,
        connection_class=SSLConnection if encrypted else Connection,
        host=host.name,
        port=host.port,
        db=db,
        username=where.user,
        password=where.password,
        socket_timeout=answers_within,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,
        **tls,
    )


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


_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
"""What INCRBY takes for a number; Python's int() takes more."""


async def last_drawn(node: RedisNode, counter: str) -> int:
    """Return the last number that was drawn; 0: none yet. Raises SourceError, also where the key has no number."""
    about = f"the counter {counter}"
    content = await node.command("GET", counter, about=about)
    if content is None:
        return 0
    if _NUMBER.fullmatch(content) is None:
        raise SourceError(f"{node.name} has something else than a number as {about}")
    return int(content)


async def require_a_next(node: RedisNode, counter: str) -> None:
    """Raise SourceError where no token can be drawn, and so no lock be granted."""
    last = await last_drawn(node, counter)
    if 0 <= last < MOST_NATIVE:
        return
    mend = (
        "SET it to the highest number that was given out"
        if last < 0
        else "run `fencepost source raise`, and SET it to 0 afterwards"
    )
    raise SourceError(
        f"{node.name} has {last} as the counter {counter}, and tokens are numbers from 1 to {MOST_NATIVE}, so that no"
        f" lock is granted: {mend}"
    )


# What in a Redis server's settings makes tokens repeat, or a lock be held twice: for `fencepost doctor`.

_SETTINGS: Final = ("appendonly", "appendfsync", "min-replicas-to-write")


async def advice(node: RedisNode, counter: str | None, *, alone: bool = False) -> list[str]:
    """List what is unsafe on one server, one sentence each. Raises SourceError when it cannot be asked, or grants
    nothing: it is a cluster's, or its counter has no next token.

    counter: the key that tokens are drawn from, if they are. alone: it has to be independent, as for Redlock.
    """
    info = await server_info(node)
    if info.get("cluster_enabled") == "1":
        raise node.of_a_cluster()
    found = _eviction(node, info, counter)
    settings = await _settings(node)
    if settings is None:
        found.append(
            f"{node.name} does not let this user read its configuration: see by yourself that appendfsync is always, "
            "and min-replicas-to-write at least 1 if a replica may take over"
        )
        found += _journal(node, {"appendonly": "yes" if info.get("aof_enabled") == "1" else "no"})
    else:
        found += _journal(node, settings)
    found += _replication(node, info, settings or {}, alone=alone)
    if counter is None:
        return found
    await require_a_next(node, counter)
    return [*found, *await _expiring(node, counter)]


async def server_info(node: RedisNode) -> dict[str, str]:
    """Return the fields of INFO. Raises SourceError."""
    found: dict[str, str] = {}
    # One section at a time: Redis before 7 takes only one.
    for section in ("server", "memory", "persistence", "replication", "cluster"):
        answer: Any = await node.command("INFO", section, about="its settings (INFO)")
        # redis-py parses it, and makes numbers of some values.
        found |= {name: str(value) for name, value in answer.items()}
    return found


async def _settings(node: RedisNode) -> dict[str, str] | None:
    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            found |= _text(await node.command("CONFIG GET", name, about="its settings (CONFIG GET)"))
    except SourceUnavailableError:
        raise
    except SourceError:
        return None  # managed Redis often forbids it, or has renamed it
    return found


def _text(answer: dict[Any, Any]) -> dict[str, str]:
    return {_word(name): _word(value) for name, value in answer.items()}


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _eviction(node: RedisNode, info: dict[str, str], counter: str | None) -> list[str]:
    policy, most = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", "0")
    if policy == "noeviction" or most == "0":
        return []
    if policy.startswith("allkeys") and counter is not None:
        return [
            f"{node.name} evicts any key when its memory is full (maxmemory-policy {policy}), the counter of tokens "
            "too, and it begins at 1 again: set maxmemory-policy noeviction"
        ]
    return [
        f"{node.name} evicts keys when its memory is full (maxmemory-policy {policy}), locks too, and they are "
        "granted a second time: set maxmemory-policy noeviction"
    ]


def _journal(node: RedisNode, settings: dict[str, str]) -> list[str]:
    if settings.get("appendonly", "yes") != "yes":
        return [
            f"{node.name} keeps no journal (appendonly no): after a crash it has forgotten locks and tokens, and gives "
            "them out again; set appendonly yes and appendfsync always"
        ]
    if (when := settings.get("appendfsync", "always")) != "always":
        return [
            f"{node.name} answers before its journal is on disk (appendfsync {when}): after a crash it may have "
            "forgotten locks and tokens, and gives them out again; set appendfsync always"
        ]
    return []


def _replication(node: RedisNode, info: dict[str, str], settings: dict[str, str], *, alone: bool) -> list[str]:
    if info.get("role") == "slave":
        return [f"{node.name} is a replica, which takes no locks: name its primary in the source's URL"]
    replicas = info.get("connected_slaves", "0")
    if replicas == "0":
        return []
    if alone:
        return [
            f"{node.name} has {replicas} replicas: if one takes over it may lack locks, and Redlock's majority counts "
            "for nothing; its nodes have to be independent"
        ]
    if settings.get("min-replicas-to-write", "0") == "0":
        return [
            f"{node.name} has {replicas} replicas and goes on without them: a replica that takes over may lack the "
            "last tokens and give them out again; set min-replicas-to-write 1, and replicas=1 in the source's URL"
        ]
    return []


async def _expiring(node: RedisNode, counter: str) -> list[str]:
    # -1: it does not; -2: there is no counter yet.
    if await node.command("PTTL", counter, about=f"the counter {counter}") < 0:
        return []
    return [f"{node.name} lets the counter {counter} expire, and then it begins at 1 again: PERSIST {counter} keeps it"]


FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.2
"""Seconds between a waiter's tries, on average: twice as long each time, up to this."""


class Pauses:
    """Pauses between two tries of who waits for a lock: Redis tells nobody that it is free. A release at this process
    ends them, for speed only.
    """

    def __init__(self) -> None:
        self._ends: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def pause(self, lock: str, seconds: float) -> None:
        """Return after so long, or when the lock is released here."""
        ends = self._ends.setdefault(lock, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ends.wait()

    def end(self, lock: str) -> None:
        if (ends := self._ends.pop(lock, None)) is not None:
            ends.set()


def from_url(url: str, context: SourceContext) -> "RedisSource":
    """Make the source that a redis:// or rediss:// URL describes. Raises SourceConfigError."""
    where = read(url, context.name, REDIS)
    if WAIT_MS in where and REPLICAS not in where:
        raise where.wrong("has the option wait_ms, which needs replicas=")
    return RedisSource(where)


class RedisSource:
    """A token source in one Redis server."""

    capabilities = Capabilities(order="source", fair=False, verifies=True)

    def __init__(self, where: SourceUrl) -> None:
        self._prefix = where[PREFIX]
        self._counter = f"{self._prefix}tokens"
        self._replicas = where[REPLICAS]
        self._wait_ms = where[WAIT_MS]
        self._node = RedisNode(where, where.hosts[0], REQUEST_TIMEOUT)
        self._pending = ServiceReleases()
        self._pauses = Pauses()

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        await self._pending.drain()
        await self._node.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """Take a lock. Who waits asks again and again, with random pauses."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        pause = FIRST_PAUSE
        while True:
            attempt = self._try(lock, unique_value(owner), ttl_ms, tokens)
            answer = await self._pending.acquire_or_release(attempt, lambda grant: self.release(lock, grant.handle))
            left = deadline - loop.time()
            if isinstance(answer, Grant) or left <= 0:
                return answer
            await self._pauses.pause(lock, min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311 - only spreads waiters
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _try(self, lock: str, value: str, ttl_ms: int, tokens: int) -> Grant | Holder:
        try:
            answer = await self._draw(GRANT, lock, value, ttl_ms, tokens)
        except SourceError:
            # It may have been granted all the same.
            self._pending.give_back(self.release(lock, value))
            raise
        return holder(answer) if isinstance(answer, list) else Grant(value, _numbers(answer, tokens))

    async def _draw(self, script: str, lock: str, *values: str | int) -> Any:
        """Run a script that draws tokens; with `replicas=` they count only once enough replicas know of them."""
        keys, about = (self._key(lock), self._counter), self._about(lock)
        if self._replicas == 0:
            return await self._node.run(script, keys, *values, about=about)
        answer, count = await self._node.run_replicated(
            script, keys, *values, about=about, replicas=self._replicas, wait_ms=self._wait_ms
        )
        if isinstance(answer, int) and count < self._replicas:
            raise SourceUnavailableError(
                f"{self._node.name} drew a token for {about}, but only {count} of {self._replicas} replicas had it "
                f"within {self._wait_ms} ms"
            )
        return answer

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        return bool(await self._node.run(EXTEND, (self._key(lock),), handle, ttl_ms, about=self._about(lock)))

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        last = await self._draw(MINT, lock, handle, count)
        return None if last is None else _numbers(last, count)

    async def release(self, lock: str, handle: str) -> None:
        await self._node.run(RELEASE, (self._key(lock),), handle, about=self._about(lock))
        self._pauses.end(lock)

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock. A lock of a program that sets another kind of value has no owner that we know."""
        held = await self._node.run(LOOK, (self._key(lock),), about=self._about(lock))
        return None if held is None else holder(held)

    async def issued(self, number: int) -> bool:
        return await last_drawn(self._node, self._counter) >= number

    async def advice(self) -> list[str]:
        return await advice(self._node, self._counter)

    def _key(self, lock: str) -> str:
        return f"{self._prefix}lock:{lock}"

    def _about(self, lock: str) -> str:
        return f"the lock {lock} (keys {self._key(lock)} and {self._counter})"


def _numbers(last: int, count: int) -> tuple[int, ...]:
    return tuple(range(last - count + 1, last + 1))
