"""The Redis of a queue: its URL, its keys, its scripts, the connection, and what its settings lose."""

import asyncio
import hashlib
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from redis import exceptions as redis_errors

from fencepost.server.locks.redis import CA, PORT, REPLICAS, WAIT_MS, connections_to
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Form,
    Host,
    Option,
    SourceConfigError,
    SourceUrl,
    read,
    text,
    whole,
)
from fencepost.server.queues.log import MOST_OFFSET, LogConfigError, LogUnavailableError, LogUnknownError

# What the URL of a queue in Redis may have (locks/source.py), and the names of the queue's keys.

DB: Final = Option("db", whole(0, 9999), 0)
"""The number of the database: the path is the queue's name."""
FSYNC: Final = Option("fsync", whole(0, 1), 0)
"""1: a message counts as appended once the server's journal has it on disk (WAITAOF)."""
PARTITIONS: Final[Option[int | None]] = Option("partitions", whole(1, 1000), None)
"""How many partitions the queue is made with; must be what it has, where it is there already."""
PREFIX: Final = Option(
    "prefix", text("[!-z|~]{1,64}", "1 to 64 ASCII characters without spaces and braces"), "fencepost:"
)
"""What all keys begin with."""
# With REPLICAS, a message counts as appended once so many replicas have it (WAIT).

DEFAULT_PARTITIONS: Final = 8
STREAM: Final = re.compile(r"/[A-Za-z0-9._-]{1,48}", re.ASCII)

FORM: Final = Form(
    "redis://[user:password@]host[:port][,host…]/stream[?option=value&…], or rediss:// with TLS",
    (CA, DB, FSYNC, PARTITIONS, PREFIX, REPLICAS, WAIT_MS),
    STREAM,
    PORT,
    most=99,
    of="queue",
)


def read_url(url: str) -> SourceUrl:
    """Read the URL of a queue in Redis. Raises LogConfigError, without what may be a password."""
    try:
        where = read(url, "redis", FORM)
        if WAIT_MS in where and not where[REPLICAS] and not where[FSYNC]:
            raise where.wrong("has the option wait_ms, which needs replicas= or fsync=1")
    except SourceConfigError as error:
        raise LogConfigError(str(error)) from None
    return where


class QueueKeys:
    """The names of a queue's keys. The part in braces alone chooses the slot of a cluster: so all are in one."""

    def __init__(self, prefix: str, stream: str) -> None:
        self.queue = f"{prefix}{{{stream}}}"
        self.members = f"{self.queue}:members"
        self.done = f"{self.queue}:done"
        self.dead = f"{self.queue}:dead"
        self.dead_order = f"{self.queue}:dead:order"
        self.dead_counts = f"{self.queue}:dead:counts"

    def stream(self, partition: int) -> str:
        return f"{self.queue}:{partition}"

    def owner(self, partition: int) -> str:
        return f"{self.queue}:{partition}:owner"


# The Lua scripts of a queue in Redis. Redis runs a script whole: nothing happens in between, and no key expires in it.
#
# KEYS[1] is always the queue's own key. Its value, the layout, is `<incarnation>/<partitions>`, made once with the
# queue; every script compares it, so that nothing is done to another queue of the same name. A script that sees that
# messages are gone which were there replaces the incarnation: from then on all processes see that this is another log.
#
# The stream of a partition has the messages that are not decided yet: done is XDEL, and the stream keeps its last id.
# How many were deleted so is counted, and compared with what the stream says that it had and has: messages that were
# trimmed, or deleted by hand, are missed, and the queue gets another incarnation. Messages are read with XRANGE behind
# what their owner has read before, from the start when it is a new owner. There is no consumer group: a partition has
# one owner, and what is not done is what is in the stream, in order. A group would write one more record into the
# journal for each message, to say the same.
#
# Numbers in Lua are doubles, exact up to 2^53.


@dataclass(frozen=True, slots=True)
class Script:
    """A script; `sha` is how the server remembers it."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", sha)


_LAST: Final = """
-- The sequence of the last message that a stream ever had; 0: none.
local function last_of(key)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local info = redis.call('XINFO', 'STREAM', key)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then return tonumber(string.match(info[at + 1], '^0%-(%d+)$')) or -1 end
  end
end
"""

_MISSED: Final = """
-- How many messages of a stream are gone that nobody has done. `done`: the key with the counts of those that are done.
-- `at`: the number of the partition.
local function missed(key, done, at)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local info, length, added = redis.call('XINFO', 'STREAM', key), 0, 0
  for n = 1, #info, 2 do
    if info[n] == 'length' then length = info[n + 1] elseif info[n] == 'entries-added' then added = info[n + 1] end
  end
  return added - length - (tonumber(redis.call('HGET', done, at)) or 0)
end
"""

MAKE: Final = Script("""
-- KEYS queue, done; ARGV the layout of a new queue. Gives the layout that it has.
local layout = redis.call('GET', KEYS[1])
if layout then return layout end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'of', ARGV[1])
return ARGV[1]
""")

MISSED: Final = Script(f"""{_MISSED}
-- KEYS queue, done, streams; ARGV layout, a layout to replace this one if messages are missed. Gives the layout; or the
-- number of the first stream of which messages are gone that nobody has done, from 1, and how many. Where the counts
-- are of another layout, or are not there, they begin anew.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return {{layout}} end
local of, found, number = redis.call('HGET', KEYS[2], 'of'), 0, 0
if of == layout then
  for at = 3, #KEYS do
    if found <= 0 then number, found = at - 2, missed(KEYS[at], KEYS[2], at - 3) end
  end
  if found <= 0 then return {{layout}} end
  layout = ARGV[2]
  redis.call('SET', KEYS[1], layout)
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'of', layout)
for at = 3, #KEYS do redis.call('HSET', KEYS[2], at - 3, missed(KEYS[at], KEYS[2], at - 3)) end
if found <= 0 then return {{layout}} end
return {{number, found}}
""")

APPEND: Final = Script(f"""
-- KEYS queue, stream, done; ARGV layout, the highest sequence that the asker knows of, a layout to replace this one if
-- messages are lost, the number of the partition, then the fields. Gives the message's sequence; or the layout where it
-- is another; or false where there is none.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local time = redis.call('TIME')
local at = string.format('%d.%06d', time[1], time[2])
local id = redis.call('XADD', KEYS[2], '0-*', 'at', at, unpack(ARGV, 5))
local sequence = tonumber(string.sub(id, 3))
if sequence <= tonumber(ARGV[2]) then
  redis.call('XDEL', KEYS[2], id)
  redis.call('SET', KEYS[1], ARGV[3])
  return ARGV[3]
end
if sequence > {MOST_OFFSET + 1} then
  redis.call('HINCRBY', KEYS[3], ARGV[4], redis.call('XDEL', KEYS[2], id))
  return redis.error_reply('ERR the partition is full: no token can be made of its next offset')
end
return sequence
""")

STATE: Final = Script(f"""{_LAST}
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream its last sequence; -1: not of this program.
local answer = {{redis.call('GET', KEYS[1])}}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do answer[at] = last_of(KEYS[at]) end
return answer
""")

DECIDED: Final = Script(f"""{_LAST}
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream the sequence below which nothing is undone.
local answer = {{redis.call('GET', KEYS[1])}}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do
  local first = redis.call('XRANGE', KEYS[at], '-', '+', 'COUNT', 1)[1]
  answer[at] = first and tonumber(string.match(first[1], '^0%-(%d+)$') or 0) or last_of(KEYS[at]) + 1
end
return answer
""")

OLDEST: Final = Script("""
-- KEYS queue, streams; ARGV layout. Gives the layout, then for each stream when its first message was added, or ''.
local answer = {redis.call('GET', KEYS[1])}
if answer[1] ~= ARGV[1] then return answer end
for at = 2, #KEYS do
  local first = redis.call('XRANGE', KEYS[at], '-', '+', 'COUNT', 1)[1]
  answer[at] = ''
  if first then
    for field = 1, #first[2], 2 do
      if first[2][field] == 'at' then answer[at] = first[2][field + 1] end
    end
  end
end
return answer
""")

CLAIM: Final = Script("""
-- KEYS queue, members, owners of all partitions; ARGV layout, asker, TTL in ms, 1 if it asks for the first time.
-- An asker is `<16 hex digits>:<member>`. Gives how many partitions it should have, then the numbers of those it has;
-- -1 where another process has come under its name since; or the layout where it is another, or false.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
-- A member that was started again takes at once what it had. What it was before may still run.
local former = {}
for _, other in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if other ~= ARGV[2] and string.sub(other, 17) == string.sub(ARGV[2], 17) then
    if ARGV[4] ~= '1' then return {-1} end
    former[other] = true
    redis.call('ZREM', KEYS[2], other)
  end
end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
local members = redis.call('ZRANGE', KEYS[2], 0, -1)
local function by_name(asker) return string.sub(asker, 17) .. string.sub(asker, 1, 16) end
table.sort(members, function(one, other) return by_name(one) < by_name(other) end)
local partitions, quota = #KEYS - 2, 0
for rank, member in ipairs(members) do
  if member == ARGV[2] then
    quota = math.floor(partitions / #members) + (rank <= partitions % #members and 1 or 0)
  end
end
local mine, free = {}, {}
for at = 3, #KEYS do
  local owner = redis.call('GET', KEYS[at])
  if owner == ARGV[2] then
    redis.call('PEXPIRE', KEYS[at], ARGV[3])
    mine[#mine + 1] = at - 3
  elseif not owner or former[owner] then
    free[#free + 1] = at
  end
end
for _, at in ipairs(free) do
  if #mine < quota then
    redis.call('SET', KEYS[at], ARGV[2], 'PX', ARGV[3])
    mine[#mine + 1] = at - 3
  end
end
return {quota, unpack(mine)}
""")

_READ_AT_ONCE: Final = 8
"""How many messages of a stream are read before their bytes are counted."""

READ: Final = Script(f"""{_LAST}
-- KEYS queue, then owner and stream of each partition; ARGV layout, asker, how many messages at most, after how many
-- bytes no more are read, a layout to replace this one if messages are lost, then for each partition the last sequence
-- that was read.
-- Gives lists {{number in KEYS, entries}}, false in place of entries where the asker is no longer the owner; or the
-- layout where it is another, or false. Each partition gets its share first, and then what others left over; when the
-- bytes are used up, those that come last get nothing.
local layout = redis.call('GET', KEYS[1])
if layout ~= ARGV[1] then return layout end
local answer, open, left, bytes = {{}}, {{}}, tonumber(ARGV[3]), tonumber(ARGV[4])
for number = 1, (#KEYS - 1) / 2 do
  if redis.call('GET', KEYS[2 * number]) == ARGV[2] then
    local known = ARGV[5 + number]
    open[#open + 1] = {{number, KEYS[2 * number + 1], '(0-' .. known, {{}}, tonumber(known)}}
  else
    answer[#answer + 1] = {{number, false}}
  end
end
while #open > 0 and left > 0 do
  local share, more = math.min(math.ceil(left / #open), {_READ_AT_ONCE}), {{}}
  for _, each in ipairs(open) do
    local count = math.min(share, left)
    local entries = count > 0 and redis.call('XRANGE', each[2], each[3], '+', 'COUNT', count) or {{}}
    for _, entry in ipairs(entries) do
      table.insert(each[4], entry)
      for _, part in ipairs(entry[2]) do bytes = bytes - #part end
    end
    left = bytes > 0 and left - #entries or 0
    if count > 0 and #entries == count then
      each[3] = '(' .. entries[count][1]
      more[#more + 1] = each
    else
      if count > 0 and #each[4] == 0 and last_of(each[2]) < each[5] then
        redis.call('SET', KEYS[1], ARGV[5])
        return ARGV[5]
      end
      if #each[4] > 0 then answer[#answer + 1] = {{each[1], each[4]}} end
    end
  end
  open = more
end
for _, each in ipairs(open) do if #each[4] > 0 then answer[#answer + 1] = {{each[1], each[4]}} end end
return answer
""")

DONE: Final = Script("""
-- KEYS queue, owner, stream, done; ARGV layout, asker, the number of the partition, ids. Gives how many were there, or
-- -1: the asker is not the owner.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return -1 end
local deleted = redis.call('XDEL', KEYS[3], unpack(ARGV, 4))
redis.call('HINCRBY', KEYS[4], ARGV[3], deleted)
return deleted
""")

GIVE_UP: Final = Script("""
-- KEYS queue, members, owners; ARGV asker, 1 if it leaves. Gives up partitions.
for at = 3, #KEYS do
  if redis.call('GET', KEYS[at]) == ARGV[1] then redis.call('DEL', KEYS[at]) end
end
if ARGV[2] == '1' then redis.call('ZREM', KEYS[2], ARGV[1]) end
return 1
""")

PUT_DEAD: Final = Script("""
-- KEYS dead letters, their order, counts by partition; ARGV id, when, the letter, its partition. One that is there
-- stays as it is, and is written once more all the same: so that waiting for replicas or the disk means something when
-- it is put a second time.
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there then redis.call('HINCRBY', KEYS[3], ARGV[4], 1) end
redis.call('HSET', KEYS[1], ARGV[1], there or ARGV[3])
return redis.call('ZADD', KEYS[2], redis.call('ZSCORE', KEYS[2], ARGV[1]) or ARGV[2], ARGV[1])
""")

LIST_DEAD: Final = Script("""
-- KEYS dead letters, their order; ARGV how many. Gives the oldest.
local answer = {}
for at, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1)) do
  answer[at] = redis.call('HGET', KEYS[1], id)
end
return answer
""")

DROP_DEAD: Final = Script("""
-- KEYS dead letters, their order, counts by partition; ARGV id. Gives 1, or 0: there was none.
local letter = redis.call('HGET', KEYS[1], ARGV[1])
local readable, read = pcall(cjson.decode, letter)
local partition = readable and type(read) == 'table' and read['partition']
if type(partition) == 'number' then redis.call('HINCRBY', KEYS[3], partition, -1) end
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
""")


# The Redis server of a queue: each request once, within a time limit.
#
# Nothing is repeated here but what the server says it has not done: a script that it does not remember, and a request
# that belongs to another node of its cluster. All keys of a queue are in one slot, so one node has them all, and what
# a request needs is a connection to that one. Where the URL names several servers, the next one is asked after one
# could not be reached or turned out to be a replica.

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
            # With a limit for answers the library uses wait_for, which in Python 3.11 may swallow a cancellation:
            # `_exchange` has one.
            self._pools[host] = connections_to(self._where, host, self._where[DB], REQUEST_TIMEOUT, None)
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


async def _answer(connection: Any) -> Any:
    """Read one answer; an error that the server gives is one. The time limit is the caller's."""
    try:
        return await connection.read_response(disable_decoding=True, timeout=math.inf)
    except redis_errors.ResponseError as error:
        return error


def _reason(error: Exception) -> str:
    return _SCRIPT_PLACE.sub("", str(error)).rstrip(". ") or type(error).__name__


_TEXT: Final = re.compile(rb"([0-9a-f]{32})/([0-9]{1,4})")
_LEAST_VERSION: Final = (7, 0)
_LEAST_VERSION_FSYNC: Final = (7, 2)


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """A queue's layout, made once with it. `incarnation`: 32 random hexadecimal digits. `text`: as its key has it."""

    incarnation: str
    partitions: int

    @property
    def text(self) -> str:
        return f"{self.incarnation}/{self.partitions}"

    @classmethod
    def read(cls, text: bytes) -> Self | None:
        """Read it; None where it is something else."""
        found = _TEXT.fullmatch(text)
        return None if found is None or int(found[2]) == 0 else cls(found[1].decode(), int(found[2]))

    @classmethod
    def new(cls, partitions: int) -> Self:
        return cls(secrets.token_hex(16), partitions)


class Layouts:
    """Knows the queue's layout. Who appends or takes makes the queue where there is none; who looks does not.

    A process takes a queue as it finds it. The consumers compare it with the one that was recorded before
    (postgres/queues.py).
    """

    def __init__(self, where: SourceUrl, server: RedisServer, keys: QueueKeys) -> None:
        self._where, self._server, self._keys = where, server, keys
        self._known: QueueLayout | None = None
        self._makes = False

    async def get(self) -> QueueLayout:
        """Give the layout that was last seen, for one who appends or takes. Raises LogUnavailableError, also where the
        queue cannot be used.
        """
        self._makes = True
        return await self.seen() or self.none_yet

    async def seen(self) -> QueueLayout | None:
        """Give the layout that was last seen; None: there is no queue, and nobody has asked for one here. Raises as
        `get`.
        """
        if self._known is None:
            await self._check_version()
            self._known = await self._ask()
        return self._known

    @property
    def none_yet(self) -> QueueLayout:
        """Make the layout that the queue would have if it were made now."""
        return QueueLayout.new(self._where[PARTITIONS] or DEFAULT_PARTITIONS)

    def forget(self, layout: QueueLayout) -> None:
        if self._known == layout:
            self._known = None

    async def _ask(self) -> QueueLayout | None:
        wanted, about = self._where[PARTITIONS], f"the queue {self._keys.queue}"
        text: Any
        if self._makes:
            keys = (self._keys.queue, self._keys.done)
            text = await self._server.run(MAKE, keys, self.none_yet.text, about=about, durable=True)
        else:
            text = await self._server.command("GET", self._keys.queue, about=about)
        if text is None:
            return None
        layout = QueueLayout.read(text)
        if layout is None:
            raise LogUnavailableError(f"{self._server.name} has something else than a queue as {self._keys.queue}")
        if wanted is not None and wanted != layout.partitions:
            raise LogUnavailableError(
                f"{self._server.name} has {about} with {layout.partitions} partitions, which cannot change: its URL "
                f"says partitions={wanted}"
            )
        return layout

    async def _check_version(self) -> None:
        info: bytes = await self._server.command("INFO", "server", about="its version (INFO)")
        found = re.search(rb"redis_version:(([0-9]+)\.([0-9]+)[^\r\n]*)", info)
        if found is None:
            raise LogUnavailableError(f"{self._server.name} does not say which version it is")
        version, fsync = (int(found[2]), int(found[3])), bool(self._where[FSYNC])
        if version < (_LEAST_VERSION_FSYNC if fsync else _LEAST_VERSION):
            least = "fsync=1 needs 7.2 or newer (WAITAOF)" if fsync else "queues need 7.0 or newer (XADD 0-*)"
            raise LogUnavailableError(f"{self._server.name} is Redis {found[1].decode()}: {least}")


# What in a Redis server's settings loses messages or repeats their offsets: for `fencepost doctor`.

_SETTINGS: Final = ("appendonly", "appendfsync", "min-replicas-to-write")
_SECTIONS: Final = ("server", "memory", "persistence", "replication")
_FIELD: Final = re.compile(r"([a-z0-9_]+):([^\r\n]*)")


async def advice(server: RedisServer, where: SourceUrl, layout: QueueLayout, keys: QueueKeys) -> list[str]:
    """List what is unsafe, one sentence each. Raises LogUnavailableError."""
    answer: bytes = await server.command("INFO", *_SECTIONS, about="its settings (INFO)")
    info: dict[str, str] = dict(_FIELD.findall(answer.decode(errors="replace")))
    settings = await _settings(server)
    found = _eviction(server.name, info)
    if settings is None:
        found.append(
            f"{server.name} does not let this user read its configuration: see by yourself that appendfsync is always, "
            "and min-replicas-to-write at least 1 if a replica may take over."
        )
        settings = {"appendonly": "yes" if info.get("aof_enabled") == "1" else "no"}
    found += _journal(server.name, settings, fsync=bool(where[FSYNC]))
    found += _replication(server.name, info, settings, where[REPLICAS])
    return found + await _expiring(server, layout, keys)


async def _settings(server: RedisServer) -> dict[str, str] | None:
    """Read its configuration; None where it refuses, as managed Redis often does."""
    try:
        answer: list[bytes] = await server.command("CONFIG", "GET", *_SETTINGS, about="its settings (CONFIG GET)")
    except RedisRefusedError:
        return None
    words = [word.decode() for word in answer]
    return dict(zip(words[::2], words[1::2], strict=True))


def _eviction(name: str, info: dict[str, str]) -> list[str]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory", "0") == "0":
        return []
    return [
        f"{name} evicts keys when its memory is full (maxmemory-policy {policy}): "
        + (
            "a partition with all its messages, too"
            if policy.startswith("allkeys")
            else "who owns a partition, too, and two take from it"
        )
        + "; set maxmemory-policy noeviction."
    ]


def _journal(name: str, settings: dict[str, str], *, fsync: bool) -> list[str]:
    if settings.get("appendonly", "yes") != "yes":
        return [
            f"{name} keeps no journal (appendonly no): a crash loses messages that were acknowledged; set "
            "appendonly yes and appendfsync always."
        ]
    when = settings.get("appendfsync", "always")
    if when != "always" and not fsync:
        return [
            f"{name} answers before its journal is on disk (appendfsync {when}): a crash may lose messages that were "
            "acknowledged; set appendfsync always, or fsync=1 in the queue's URL (Redis 7.2)."
        ]
    return []


def _replication(name: str, info: dict[str, str], settings: dict[str, str], replicas: int) -> list[str]:
    if info.get("role") == "slave":
        return [f"{name} is a replica, which takes no messages: name its primary in the queue's URL."]
    connected = int(info.get("connected_slaves", "0"))
    if connected < replicas:
        return [f"{name} has {connected} replicas, and the queue's URL wants {replicas}: no message is acknowledged."]
    found = []
    if connected and not replicas:
        found.append(
            f"{name} has {connected} replicas, and acknowledges messages that none of them has: a replica that takes "
            "over may lack them; set replicas=1 in the queue's URL."
        )
    if connected and settings.get("min-replicas-to-write", "1") == "0":
        found.append(
            f"{name} goes on without its replicas: after a failover two servers may take messages; set "
            "min-replicas-to-write 1."
        )
    return found


async def _expiring(server: RedisServer, layout: QueueLayout, keys: QueueKeys) -> list[str]:
    names = (
        keys.queue,
        keys.dead,
        keys.dead_order,
        keys.dead_counts,
        *(keys.stream(each) for each in range(layout.partitions)),
    )
    expiring = [name for name in names if await server.command("PTTL", name, about=f"whether {name} expires") >= 0]
    return [
        f"{server.name} lets {name} expire, and then its messages are gone: PERSIST {name} keeps it."
        for name in expiring
    ]
