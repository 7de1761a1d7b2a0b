"""Holders: what an actor of a run sends, to the gateway or to the database, and under which lock."""

import asyncio
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg
import httptools
import orjson

from fencepost.client.http import FILE_VARIABLE, TOKEN_VARIABLE
from fencepost.testing.history import Op, Operation, Reason, Recorder
from fencepost.testing.torture.assignment import BUILTIN, Assignment, Fenced, How, Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable

# HTTP/1.1 over one connection, one request at a time, without any repetition: what a history is recorded from.
#
# A client that repeats requests by itself, or that cannot distinguish "never sent" from "sent and not answered", would
# hide what is looked for here. This one also costs little: a worker process sends some thousand requests a second.

CONNECT_WITHIN = 3.0  # seconds


class NotSentError(Exception):
    """The request was never sent: it has certainly had no effect."""


class LostError(Exception):
    """The request was sent, at least in part, and no whole answer came: whether it had an effect is unknown."""


@dataclass(frozen=True, slots=True)
class HolderAnswer:
    """A whole answer."""

    status: int
    headers: Mapping[bytes, bytes]
    content: bytes

    @property
    def body(self) -> Any:
        """Its JSON; None without a body. ValueError if it is something else."""
        return orjson.loads(self.content) if self.content else None

    @property
    def mark(self) -> int | None:
        """The mark after a write, or of the row that was read."""
        text = self.headers.get(b"x-fence-mark")
        return None if text is None else int(text)


class HolderExchange:
    """A connection to the server at `url`, opened when it is needed and again when it was lost."""

    def __init__(self, url: str, *, within: float, token: Callable[[], str] | None = None) -> None:
        parts = urlsplit(url)
        self._token = token
        self.url, self._within = url, within
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {self._host}:{self._port}\r\n".encode()
        self._connection: _Connection | None = None

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> HolderAnswer:
        """Send one request and return its answer. `body`: bytes are lines of JSON. Raises NotSentError, LostError."""
        content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if self._token is not None:
            lines += f"Authorization: Bearer {self._token()}\r\n"
        if content:
            kind = "x-ndjson" if isinstance(body, bytes) else "json"
            lines += f"Content-Type: application/{kind}\r\nContent-Length: {len(content)}\r\n"
        request = f"{method} {path} HTTP/1.1\r\n{lines}".encode() + self._head + b"\r\n" + content
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._within):
                return await connection.answer_to(request)
        except TimeoutError:
            raise LostError(f"no answer within {self._within:g} s") from None
        finally:
            if not connection.reusable:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def closed(self) -> None:
        """Return once the server has closed the connection, if there is one."""
        if self._connection is not None:
            await self._connection.closed.wait()

    async def _connected(self) -> "_Connection":
        if self._connection is None or not self._connection.reusable:
            self.close()
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(CONNECT_WITHIN):
                    _, self._connection = await loop.create_connection(_Connection, self._host, self._port)
            except (OSError, TimeoutError) as error:
                raise NotSentError(f"no connection to {self.url}: {str(error) or 'timeout'}") from None
        return self._connection


class _Connection(asyncio.Protocol):
    """The bytes of one connection; also what httptools calls back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HolderAnswer] | None = None
        self.closed = asyncio.Event()
        self._begin()

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent on it: it is open, and no answer is still to come."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def answer_to(self, request: bytes) -> HolderAnswer:
        assert self._transport is not None  # noqa: S101 - for the type: `_connected` has seen to it
        self._begin()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._content: list[bytes] = []

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(f"not HTTP: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._lost(f"the connection was cut: {str(exc or '') or 'closed by the server'}")

    def _lost(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LostError(why))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._content.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004 - an interim answer: the real one follows
            self._headers = {}
            return
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(HolderAnswer(status, self._headers, b"".join(self._content)))


# What an answer of a gateway says of an operation: it happened, it has certainly not happened, or that is unknown.
#
# Written from the promises of docs/outcomes.md, not from the gateway's code. In doubt it is unknown: a checker allows
# unknown operations to have happened and not to have happened.

_REASONS: Final[dict[str, Reason]] = {
    "FP001": "stale",
    "FP002": "spent",
    "FP006": "missing",
    "FP011": "held",
    "FP018": "unissued",
}
_UNKNOWN: Final = frozenset({"FP009", "FP023"})
_GENERATION: Final = 2**48
"""A failover raises the marks of all tables that have older tokens: to the last number before those of its own. An
answer that does not show the mark (rule epoch) is sorted by merging.py, which is told when failovers were."""
_SUCCESS: Final = range(200, 300)
_FAILED: Final = 500
_CONSTRAINT: Final = re.compile("23[0-9A-Z]{3}")


@dataclass(frozen=True, slots=True)
class WasRefused:
    """It has certainly had no effect. `mark` where the answer names it."""

    reason: Reason
    code: str
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have happened, or may still."""

    why: str


def outcome(answer: HolderAnswer) -> HolderAnswer | WasRefused | Unknown:
    """Sort an answer; it is returned as it is if the operation happened."""
    if answer.status in _SUCCESS:
        return answer
    problem = _problem(answer)
    code = problem.get("code")
    if not isinstance(code, str):
        return Unknown(f"{answer.status} without a code")
    if code in _UNKNOWN or (answer.status >= _FAILED and not _nothing_was_done(code, problem)):
        return Unknown(f"{answer.status} {code}")
    named = problem.get("current_token")
    mark = int(named) if isinstance(named, str) else None
    if mark is not None and _of_a_failover(mark):
        return WasRefused("other", code)  # the token is of an earlier generation
    return WasRefused(_REASONS.get(code, "other"), code, mark)


def mark_read(answer: HolderAnswer) -> int | None:
    """Give the mark that the answer to a read shows; None for one that a failover has raised."""
    return None if answer.mark is None or _of_a_failover(answer.mark) else answer.mark


def _of_a_failover(mark: int) -> bool:
    """Whether a failover has raised the mark to this: no operation of the history has."""
    return (mark + 1) % _GENERATION == 0


def _nothing_was_done(code: str, problem: dict[str, object]) -> bool:
    """Whether a 5xx promises that nothing was changed: it may be repeated, or writes are in quarantine."""
    return problem.get("retryable") is True or code in {"FP015", "FP025"} or _CONSTRAINT.fullmatch(code) is not None


def _problem(answer: HolderAnswer) -> dict[str, object]:
    try:
        body = answer.body
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


# The token or API key of a run against a gateway that runs already. Worker processes share the environment with us.

READ_EVERY: Final = 5.0
"""Seconds after which the file is read again: a token that is renewed replaces it."""


def run_token() -> Callable[[], str] | None:
    """Give what returns the token for each request; None: the environment has none."""
    file = os.environ.get(FILE_VARIABLE)
    if file:
        return _File(Path(file)).read
    token = os.environ.get(TOKEN_VARIABLE)
    return (lambda: token) if token else None


class _File:
    """A file with a token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token, self._read_at = "", -READ_EVERY

    def read(self) -> str:
        if (now := time.monotonic()) - self._read_at >= READ_EVERY:
            self._read_at = now
            try:
                self._token = self._path.read_text("utf-8").strip()
            except OSError:  # it is just being replaced
                if not self._token:
                    raise
        return self._token


# What a worker does in the database, past the gateway: it ends leases, and writes without a fence for the control.

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
T = TypeVar("T")
_WITHIN: Final = 5.0  # seconds

DATABASE_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # from a connection that PostgreSQL's end has left in the middle of an answer
)
"""What a statement raises when the database cannot be reached, or ends meanwhile."""

EXPIRE: Final = """
UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'
 WHERE lease_id = $1 AND starts_with(names[1], $2) AND ended_at IS NULL
"""
"""Of a lease of this run only: in a database that is not the gateway's, the number may be another program's lease."""


class HolderDatabase:
    """A few connections, opened when they are needed and again when they were lost.

    `prefix` begins the names of the run's locks.
    """

    def __init__(self, url: str, prefix: str, connections: int = 2) -> None:
        self._url, self._prefix = url, prefix
        self._free: list[Connection] = []
        self._slots = asyncio.Semaphore(connections)

    async def close(self) -> None:
        for connection in self._free:
            connection.terminate()
        self._free = []

    async def expire(self, lease_id: str) -> None:
        """Move the end of a built-in lease into the past. A database that cannot be reached is left alone."""
        with suppress(*DATABASE_ERRORS):
            await self._run(lambda connection: connection.execute(EXPIRE, int(lease_id), self._prefix))

    async def members(self, table: str, name: str) -> str:
        """Read a row of the control. Raises what asyncpg raises."""
        query = f"SELECT value FROM public.{table} WHERE id = $1"
        return str(await self._run(lambda connection: connection.fetchval(query, name)) or "")

    async def store(self, table: str, name: str, members: str) -> None:
        """Write it, whatever is there: this is what no fence looks at. Raises what asyncpg raises."""
        statement = f"INSERT INTO public.{table} (id, value) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET value = $2"
        await self._run(lambda connection: connection.execute(statement, name, members))

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """Read, or write without a fence. Raises what asyncpg raises."""
        return await self._run(lambda connection: connection.fetch(query, *arguments))

    async def _run(self, work: "Callable[[Connection], Awaitable[T]]") -> T:
        async with self._slots, asyncio.timeout(_WITHIN):
            connection = self._free.pop() if self._free else await asyncpg.connect(self._url)
            try:
                done = await work(connection)
            except BaseException:
                connection.terminate()
                raise
            self._free.append(connection)
            return done


ANSWERS_WITHIN: Final = 5.0
"""Seconds after which a request counts as lost. A gateway that is paused for longer has not answered."""
_BACK_OFF: Final = 0.1
"""Seconds before the next request, after one that no gateway could take."""
_AVOIDED_FOR: Final = 0.5  # seconds
_BUSY: Final = 503
_MISSING: Final = 404


class Sender:
    """The connections of one client, one to each gateway. It records how operations ended that did not happen."""

    def __init__(
        self,
        gateways: Sequence[str],
        dice: random.Random,
        tally: Tally,
        slot: int,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._exchanges = [HolderExchange(url, within=ANSWERS_WITHIN, token=token) for url in gateways]
        self._avoided = dict.fromkeys(self._exchanges, 0.0)
        self._dice, self._tally, self._slot = dice, tally, slot

    def close(self) -> None:
        for exchange in self._exchanges:
            exchange.close()

    async def send(
        self,
        operations: Sequence[Operation],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: object = None,
        *,
        reasons: bool = True,
    ) -> HolderAnswer | None:
        """Send a request to one of the gateways; returns the answer if the operations happened.

        They have no end yet then: the caller knows what it is. If they did not happen, or that is unknown, this is
        recorded, and the result is None. The answer to a GET for a row that is not there counts as one.

        `reasons`: whether the history says why they were refused, so that this is judged, too. Not where marks may have
        been raised by what the history does not have.
        """
        try:
            exchange = self._choose()
            answer = await exchange.send(method, path, headers, body)
        except NotSentError:
            self._end(operations, WasRefused("other", "not sent"), "unsent")
            await self._avoid(exchange)
            return None
        except LostError as error:
            self._end(operations, Unknown(str(error)), "unknown")
            await self._avoid(exchange)
            return None
        found = answer if method == "GET" and answer.status == _MISSING else outcome(answer)
        if isinstance(found, HolderAnswer):
            self.count("accepted", len(operations))
            return found
        if isinstance(found, WasRefused) and not reasons:
            found = WasRefused("other", found.code)
        self._end(operations, found, "refused" if isinstance(found, WasRefused) else "unknown")
        if answer.status == _BUSY:
            await asyncio.sleep(_BACK_OFF)
        return None

    def count(self, how: How, operations: int = 1) -> None:
        for _ in range(operations):
            self._tally.count(self._slot, how)

    def _choose(self) -> HolderExchange:
        """Choose a gateway, rather one that has answered last time."""
        now = time.monotonic()
        return self._dice.choice([each for each in self._exchanges if self._avoided[each] < now] or self._exchanges)

    async def _avoid(self, exchange: HolderExchange) -> None:
        """Leave a gateway alone for a while: a dead one would make all operations fail, and soon."""
        self._avoided[exchange] = time.monotonic() + _AVOIDED_FOR
        await asyncio.sleep(_BACK_OFF)

    def _end(self, operations: Sequence[Operation], how: WasRefused | Unknown, counted: How) -> None:
        if isinstance(how, WasRefused) and len(operations) > 1:
            how = WasRefused(
                "other", how.code
            )  # one of them was refused for this reason, the others because of that one
        for operation in operations:
            if isinstance(how, Unknown):
                operation.unknown(how.why)
            else:
                operation.refused(how.reason, mark=how.mark)
        self.count(counted, len(operations))


class Actor:
    """A client with a name and dice of its own. What it does to rows; its locks are below (`acquire`)."""

    def __init__(self, number: int, assignment: Assignment, recorder: Recorder, tally: Tally) -> None:
        self.assignment = assignment
        self.name = f"w{assignment.index}.{number}"
        self.dice = random.Random(f"{assignment.seed}/{assignment.index}/{number}")  # noqa: S311 - must repeat
        self.recorder = recorder
        self._tally = tally
        self._senders: list[Sender] = []
        self.sender = self.another_sender()
        self._values = 0

    def another_sender(self) -> Sender:
        """Make connections for requests at the same time as those of `sender`."""
        token = run_token() if self.assignment.authenticated else None
        sender = Sender(self.assignment.gateways, self.dice, self._tally, self.assignment.index, token)
        self._senders.append(sender)
        return sender

    def close(self) -> None:
        for sender in self._senders:
            sender.close()

    def value(self) -> str:
        """Make a value that no other write of this run has."""
        self._values += 1
        return f"{self.name}-{self._values}"

    async def write(
        self,
        table: Fenced,
        key: str,
        token: int,
        *,
        verb: str = "PUT",
        value: str | None = None,
        once: str | None = None,
        sender: Sender | None = None,
    ) -> HolderAnswer | None:
        """Write a row: PUT creates or replaces it, PATCH changes it, POST creates it. `once`: an Idempotency-Key.

        `sender`: for a write at the same time as another one.
        """
        value = self.value() if value is None else value
        operation = self._invoke("write", table, key, token, value=value, once=once)
        headers = _headers(token) | ({} if once is None else {"Idempotency-Key": once})
        body = {"value": value} | ({"id": key} if verb == "POST" else {})
        path = table.path(None if verb == "POST" else key)
        answer = await (sender or self.sender).send([operation], verb, path, headers, body)
        if answer is not None:
            operation.ok(replayed=b"idempotent-replayed" in answer.headers)
        return answer

    async def write_many(self, table: Fenced, keys: Sequence[str], token: int) -> None:
        """Write several rows under one token, in one transaction: an operation on each of them."""
        rows = [{"id": key, "value": self.value()} for key in keys]
        operations = [self._invoke("write", table, row["id"], token, value=row["value"]) for row in rows]
        if await self.sender.send(operations, "PATCH", table.path(None), _headers(token), rows) is not None:
            for operation in operations:
                operation.ok()

    async def delete(self, table: Fenced, key: str, token: int) -> None:
        operation = self._invoke("delete", table, key, token)
        if await self.sender.send([operation], "DELETE", table.path(key), _headers(token)) is not None:
            operation.ok()

    async def claim(self, table: Fenced, key: str, token: int) -> bool:
        """Raise a row's mark without changing it; whether that is known to have happened."""
        operation = self._invoke("claim", table, key, token)
        body = {"resource": table.resource(key)}
        answer = await self.sender.send([operation], "POST", "/v1/claims", {"X-Fence-Token": str(token)}, body)
        if answer is not None:
            operation.ok()
        return answer is not None

    async def read(self, table: Fenced, key: str) -> tuple[bool, str | None]:
        """Read a row without a token: whether an answer came, and the value, or None where there is no row."""
        operation = self.recorder.invoke(process=self.name, op="read", resource=table.resource(key))
        answer = await self.sender.send([operation], "GET", f"{table.path(key)}?select=value", {})
        if answer is None:
            return False, None
        value: str | None = None if answer.status == _MISSING else answer.body["value"]
        operation.ok(value=value, token=mark_read(answer))
        return True, value

    def _invoke(
        self, op: Op, table: Fenced, key: str, token: int, *, value: str | None = None, once: str | None = None
    ) -> Operation:
        resource = table.resource(key)
        return self.recorder.invoke(
            process=self.name, op=op, resource=resource, token=token, value=value, rule=table.rule, key=once
        )


def _headers(token: int) -> dict[str, str]:
    return {"X-Fence-Token": str(token), "Prefer": "return=minimal"}


# What an actor does to locks. It does not stop when its lease is over: that is what fences are for.

_WAIT_MS: Final = 400
_BEYOND: Final = 0.05
"""Seconds that a holder sleeps longer than its lease."""


@dataclass(slots=True)
class HeldLease:
    """A lock that was granted. It may be over: a holder that was paused does not know."""

    lock: str
    id: str
    secret: str
    granted: tuple[int, ...]
    tokens: deque[int]

    @property
    def first(self) -> int:
        """The token of the grant."""
        return self.granted[0]

    def token(self) -> int:
        """Give the next token; the last one again and again, when the others are used up."""
        return self.tokens.popleft() if len(self.tokens) > 1 else self.tokens[0]


async def acquire(
    actor: Actor, lock: str, *, tokens: int = 1, wait_ms: int = _WAIT_MS, ttl_ms: int | None = None
) -> HeldLease | None:
    """Take a lock; None if it is held, or the answer is lost."""
    assignment = actor.assignment
    name = f"{assignment.prefix}/{lock}"
    operation = actor.recorder.invoke(process=actor.name, op="acquire", resource=f"lock/{name}")
    asked = {
        "lock": name,
        "owner": actor.name,
        "ttl_ms": ttl_ms or assignment.ttl_ms,
        "wait_ms": wait_ms,
        "tokens": tokens,
    } | ({} if assignment.source == BUILTIN else {"source": assignment.source})
    answer = await actor.sender.send([operation], "POST", "/v1/leases", {}, asked)
    if answer is None:
        return None
    granted = answer.body
    drawn = tuple(int(token) for token in granted["tokens"])
    operation.ok(token=drawn[0])
    return HeldLease(name, granted["lease_id"], granted["secret"], drawn, deque(drawn))


async def release(actor: Actor, lease: HeldLease) -> None:
    """Give it back."""
    operation = actor.recorder.invoke(
        process=actor.name, op="release", resource=f"lock/{lease.lock}", token=lease.first
    )
    answer = await actor.sender.send([operation], "DELETE", f"/v1/leases/{lease.id}", {"X-Lease-Secret": lease.secret})
    if answer is not None:
        operation.ok()


async def mint(actor: Actor, lease: HeldLease, count: int = 1) -> bool:
    """Draw more tokens; whether the answer says that the lease is still held.

    It is recorded as an acquire that names the token of the grant, and shows the last one that was drawn.
    """
    operation = actor.recorder.invoke(
        process=actor.name, op="acquire", resource=f"lock/{lease.lock}", token=lease.first
    )
    secret, path = {"X-Lease-Secret": lease.secret}, f"/v1/leases/{lease.id}/tokens"
    answer = await actor.sender.send([operation], "POST", path, secret, {"count": count})
    if answer is None:
        return False
    drawn = [int(token) for token in answer.body["tokens"]]
    operation.ok(token=drawn[-1])
    lease.tokens.extend(drawn)
    return True


async def lapse(actor: Actor, lease: HeldLease, database: HolderDatabase | None) -> bool:
    """Perhaps lose the lease, by the actor's dice, and go on as if it was not lost. Whether it was released."""
    lapses, dice = actor.assignment.lapses, actor.dice.random()
    if dice < lapses.early:
        await release(actor, lease)
        return True
    dice -= lapses.early
    if database is not None and dice < lapses.expired:
        await database.expire(lease.id)
        await asyncio.sleep(actor.dice.random() * _BEYOND)
        return False
    dice -= lapses.expired
    if 0 <= dice < lapses.slept:
        await asyncio.sleep(actor.assignment.ttl_ms / 1000 + actor.dice.random() * _BEYOND)
    return False
