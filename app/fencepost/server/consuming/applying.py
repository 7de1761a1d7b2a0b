"""Applies one message: reads its write as the routes do, gives it its token, and has the gateway's use case decide it.

The token of a message is that of its position, generation * 2^48 + offset + 1, where the table takes its writes by this
queue (R12). For other tables it is the one that the message carries, and the fence judges it now.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, TypeVar

from fencepost.server.fence.caller import ASKING, EVERYBODY, UNKNOWN, Caller
from fencepost.server.fence.problem_types import (
    DATABASE_UNAVAILABLE,
    SOURCE_QUARANTINED,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNISSUED_TOKEN,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import GENERATION_BITS, Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import (
    IdempotentRequest,
    Replayed,
    copied,
    read_record,
    recorded,
    recorded_problem,
)
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.refusals import acting, problem_of_refused, unavailable
from fencepost.server.gateway.results import whose
from fencepost.server.gateway.use_cases import write as decide
from fencepost.server.gateway.write import Write, known_name, name_of_body, name_of_key
from fencepost.server.http.data import DataRequest, read_write
from fencepost.server.http.headers import Headers, RawHeaders
from fencepost.server.http.problems import RequestError
from fencepost.server.postgres import queues, sources
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import RefusedError, UnavailableError
from fencepost.server.postgres.keyed import OF_QUEUES, Recorded
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.queues import PartitionProgress, Result, State
from fencepost.server.postgres.tables import ProtectedTable, Table
from fencepost.server.queues.log import LogState, Position, Received, partition_of
from fencepost.server.queues.message import (
    LateMessageError,
    MalformedMessageError,
    MessageName,
    WriteMessage,
    read_message,
    verify,
)

# What becomes of a message, and what is recorded of it: the page /v1/writes/{id} shows that.


@dataclass(frozen=True, slots=True)
class Decided:
    """It will have no other effect. `came_to` None: that was recorded in the transaction of its effect. `owner`: its
    caller (`whose`), where that is proven.
    """

    state: State
    came_to: Recorded | None = None
    owner: str = ""
    misplaced: bool = False
    """Whether it stands where it does not belong. So its record is of this place alone: the same message at its own
    place is no copy of it.
    """
    late: bool = False
    """Whether there may have been a record of it: where its own place is committed it was decided before."""


APPLIED: Final = Decided("applied")


@dataclass(frozen=True, slots=True)
class Before:
    """It was decided before, and there is a record of it, or of the message at another offset that it is a copy of."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The resource has taken a token as high as that of the message's position. Either the message was decided before,
    and there is a record of it, or it came too late.
    """

    problem: Problem


@dataclass(frozen=True, slots=True)
class Later:
    """It is not decided, and is tried again. `everything`: nothing else can be decided either, until the database and
    the log have been looked at anew. `by_others`: this process can never decide it, and leaves what it has to others.
    `too_slow`: what PostgreSQL said when the statement had taken longer than the statement timeout: that may be the
    message's own fault.
    """

    reason: str
    everything: bool = False
    by_others: bool = False
    too_slow: Problem | None = None


Verdict = Decided | Before | MarkReached | Later


def of_problem(state: State, problem: Problem) -> Decided:
    """Decide by a problem: it is the one that a synchronous write would have got."""
    return Decided(state, recorded_problem(problem))


def reason_of(came_to: Recorded) -> str:
    """Sum up in a sentence why a write was not applied; empty: it was."""
    outcome = read_record(came_to)
    return f"{outcome.name}: {outcome.detail}" if isinstance(outcome, Problem) else ""


# What a consumer reads and writes in the database about its queue (postgres/queues.py): where the log stands, and what
# was decided.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at the log came to. `partitions`: how many it has. `quarantined`: why nothing of it may be applied;
    None: it is the log that was recorded. `stopped`: by resource, the dead letter that its later messages wait for.
    """

    generation: int
    partitions: int = 0
    quarantined: str | None = None
    stopped: Mapping[str, str] = field(default_factory=dict)


class Ledger:
    """The database's side of a queue. Each method raises StorageError."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue
        self._registered = False

    async def _write(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do what is done again when it is not known to have landed. It is for writing also where it only reads: what
        is found is as safe as a commit is.
        """
        return await run_write(self._database.for_writing, work, repeatable=True)

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        """Ask the log, compare it with what is recorded of it, and record how far it has got. To be called after
        messages were taken and before one of them is written. `generation`: what the check before gave; None: nothing
        was taken yet. Where the answer has another one, what was taken is void. Raises LogError, too.
        """
        before: queues.RecordedLog | None = None
        while True:
            state = await ask()
            compare = partial(self._compare, state, generation, before)
            found, stops = await self._write(compare)
            self._registered = True
            if found.verdict != "again":
                because = (found.because or "its source is quarantined") if found.verdict == "quarantined" else None
                return Checked(found.generation, state.partitions, because, stops)
            before = found.recorded

    async def _compare(
        self, state: LogState, generation: int | None, before: queues.RecordedLog | None, connection: Connection
    ) -> tuple[queues.LogCheck, dict[str, str]]:
        if not self._registered:
            await queues.register(connection, self._queue)
        epochs = state.leader_epochs or (None,) * state.partitions
        found = await queues.check(
            connection, self._queue, state.incarnation, state.ends, epochs, generation=generation, before=before
        )
        stops = await queues.stopped(connection, self._queue) if found.stopped else []
        return found, {each.resource: each.write_id for each in stops}

    async def quarantine(self, reason: str, generation: int | None) -> None:
        """The log is not the one that was recorded, as its own client has noticed. `generation`: the one in which it
        did; nothing is done when the source was raised meanwhile. None: it does not know it.
        """
        await self._write(lambda connection: queues.quarantine(connection, self._queue, reason, generation))

    async def generation(self) -> int:
        """Read the generation of the queue's source, as it is now."""
        state = await self._write(lambda connection: sources.state(connection, self._queue, ""))
        return state.generation

    async def result(self, name: MessageName) -> Result | None:
        """Look up what was kept for a message, or for a copy of it."""
        return await self._write(lambda connection: queues.result_of_message(connection, name.id, name.content))

    async def committed(self, position: Position, generation: int) -> bool:
        """Whether the log was said to give this message no more, in this generation: it is decided, and what was kept
        for it may have been forgotten.
        """
        return await self._write(
            lambda connection: queues.is_committed(
                connection, self._queue, generation, position.partition, position.offset
            )
        )

    async def keep(
        self, name: MessageName, decided: Decided, came_to: Recorded, claimed: str, letter_bytes: int | None = None
    ) -> Result | None:
        """Keep what a message came to that has no effect. Not None: another one is kept already, and stays. `claimed`:
        whose write it says it is, where that is not proven. `letter_bytes`: what the dead letter has that it becomes;
        None: it becomes none.
        """

        async def keep(connection: Connection) -> Result | None:
            owner, letter = (decided.owner, claimed), (self._queue, letter_bytes)
            if await queues.record(connection, name.id, name.content, decided.state, came_to, owner, letter):
                return None
            found = await queues.result_of_message(connection, name.id, name.content)
            if found is None:  # it stood where it does not belong, and was retried: its record says less than it did
                found = (await queues.results(connection, [name.id])).get(name.id)
            return found

        return await self._write(keep)

    async def stop(self, resource: str, write_id: str) -> None:
        """Have later messages of a resource become dead letters, because of this one."""
        await self._write(lambda connection: queues.stop_resource(connection, self._queue, resource, write_id))

    async def go_on(self, resource: str, write_id: str) -> None:
        """Let later messages of a resource be applied again, if it is this one that stopped it."""
        await self._write(lambda connection: queues.clear_resource(connection, self._queue, resource, write_id))

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        """Note what was done, for those who look. `generation`: that of the offsets."""
        await self._write(lambda connection: queues.note(connection, self._queue, generation, partitions))

    async def note_pause(self, member: str, because: str | None) -> None:
        """Note that this member decides or takes nothing, and why; None: it goes on."""
        await self._write(lambda connection: queues.note_pause(connection, self._queue, member, because))

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        """Note, by partition, below which offset the log gives no message again. `generation`: the one in which it was
        asked.
        """
        await self._write(lambda connection: queues.note_committed(connection, self._queue, generation, offsets))

    async def now(self) -> float:
        """Read the database's clock, in seconds since the epoch."""
        return await self._write(queues.now)

    async def note_look(self, at: float, decided: Sequence[int], state: LogState, generation: int) -> None:
        """Note what the log has said after `now` gave `at`: first below which offsets all is decided, then what it
        is. So it becomes known that all is decided that came before a moment, whatever times the messages have.
        """
        said = (state.incarnation, state.ends)
        await self._write(lambda connection: queues.note_look(connection, self._queue, generation, at, decided, said))

    async def applied_to(self) -> float | None:
        """Read before when all that came into the log is decided, in seconds since the epoch; None: not known."""
        return await self._write(lambda connection: queues.applied_to(connection, self._queue))

    async def forgotten_to(self) -> float | None:
        """Read when the newest record of a caller's message was made that was forgotten; None: none was."""
        return await self._write(lambda connection: queues.forgotten_to(connection, self._queue))


@dataclass(frozen=True, slots=True)
class QueueNow:
    """What of the queue a token is made of, and a key checked against: looked at after the message was taken."""

    generation: int
    partitions: int


def token_at(position: Position, generation: int) -> Token:
    """Give the token of a position."""
    return Token((generation << GENERATION_BITS) + position.offset + 1)


@dataclass(slots=True)
class _Taken:
    """A message, read: its write, its name, the token of its position, and the gateway as its caller has it."""

    message: WriteMessage
    named: Resource
    name: MessageName
    positioned: Token
    gateway: Gateway


class Applier:
    """Applies messages of one queue. `kept_for`: how many seconds records are kept."""

    def __init__(self, gateway: Gateway, queue: str, max_body_bytes: int, kept_for: float = 86_400.0) -> None:
        self._gateway = gateway
        self._queue = queue
        self._max_body_bytes = max_body_bytes
        self._kept_for = kept_for
        self._ledger = Ledger(gateway.database, queue)

    async def apply(self, received: Received, standing: QueueNow, name: MessageName) -> Verdict:
        """Apply a message, once, as the caller whose write it is."""
        try:
            message = read_message(received.message)
            named = message.named
            caller = _misplaced(received, standing) or await self._caller_of(received, message)
        except MalformedMessageError as error:
            return _malformed(error)
        if isinstance(caller, Decided | Later):
            return caller
        positioned = token_at(received.position, standing.generation)
        taken = _Taken(message, named, name, positioned, self._gateway.of(caller))
        ASKING.set(whose(caller) or UNKNOWN)  # this is the task of the message's lane
        table = self._gateway.catalog.current.find(named.table)
        try:
            result = _of_caller(await self._attempt(taken, table), caller)
            if isinstance(result, Before | Later) or (isinstance(result, Decided) and result.state == "applied"):
                return result
            return await self._unless_outdated(named.table, table, result)
        except UnavailableError as error:
            return Later(unavailable(error).detail, everything=True)
        except RefusedError as error:
            return _by_problem(problem_of_refused(error))

    async def prove(self, received: Received, decided: Decided) -> Verdict:
        """Decide a message without applying it, as that of its caller where one is proven."""
        try:
            caller = await self._caller_of(received, read_message(received.message))
        except MalformedMessageError:
            return decided
        return caller if isinstance(caller, Later) else _of_caller(decided, caller)

    async def _caller_of(self, received: Received, message: WriteMessage) -> Caller | Later:
        """Say as whom a message is applied; Later: nothing is here to verify it by. Raises MalformedMessageError where
        its caller is not proven: it is nobody's write, and not the gateway's either. So it is where the message may be
        a copy whose record is forgotten: it came after all was decided that had come within `kept_for`. The time that
        the log gives is not asked: the message's producer may have chosen it.
        """
        if message.caller is None:
            return EVERYBODY
        keys = self._gateway.seals.keys
        if keys is None:
            why = "has a caller, and no keys are here to verify it by: start this again with --seal-keys-file"
            return Later(f"{message.resource[:200]}: the message {why} (FENCEPOST_SEAL_KEYS_FILE)", by_others=True)
        signed = verify(received.message, self._queue, keys)
        age = self._gateway.seals.now() - signed.at
        if age > self._kept_for:
            signed.require_in_time(await self._ledger.applied_to() or 0.0, self._kept_for)
        if age > _YOUNG:
            signed.require_remembered(await self._ledger.forgotten_to())
        return signed.caller

    async def _attempt(self, taken: _Taken, table: Table | None) -> Verdict:
        try:
            return await self._write(taken, table)
        except MalformedMessageError as error:
            return _malformed(error)
        except RequestError as error:
            return of_problem("failed", error.problem)
        except QueryError as error:
            return of_problem("failed", bad_request(str(error)))
        except RefusedError as error:
            return Before() if copied(error) else _by_problem(problem_of_refused(error, table))

    async def _write(self, taken: _Taken, table: Table | None) -> Verdict:
        message, name = taken.message, taken.name
        read = await self._read(message, taken.named)
        takes_position = self._takes_position(table, message)
        write = replace(read, token=taken.positioned if takes_position else message.token)
        if isinstance(table, ProtectedTable):
            refused = await acting(taken.gateway, _require_name(taken, table, write))
            if refused is not None:
                return of_problem("failed", refused)
        own = IdempotentRequest(name.id, name.content, taken.gateway, write, OF_QUEUES, looked_up=False)
        outcome = await decide(taken.gateway, write, own)
        return _result_of(taken.gateway, write, outcome, positioned=takes_position)

    async def _read(self, message: WriteMessage, named: Resource) -> Write:
        posted = message.method == "POST"
        row = b"" if posted else message.resource.encode().partition(b"/")[2]
        headers, named_headers = _headers_of(
            message.prefer, message.accept, message.content_type or _JSON, message.idempotency_key
        )
        request = DataRequest(message.method, row, message.query, headers, named_headers, message.body or b"")
        write = await read_write(request, named.table, None if posted else named.key, self._max_body_bytes)
        if not write.single:
            raise MalformedMessageError("body: a message writes one row, and its body is one object")
        return write

    def _takes_position(self, table: Table | None, message: WriteMessage) -> bool:
        source = _source_of(table) or ""
        if ":" not in source:
            return False
        if source != self._queue:
            raise MalformedMessageError(f"key: {message.named.table} takes its writes by the queue {source}")
        if message.token is not None:
            raise MalformedMessageError(
                f"header fence-token: {message.named.table} takes the positions of its queue for tokens, and no others"
            )
        return True

    async def _unless_outdated(self, name: str, table: Table | None, result: Verdict) -> Verdict:
        """Take no refusal that an outdated picture of the table may be the reason of: which source its tokens come
        from, for example. A change of the table decides what the same message comes to.
        """
        if await self._gateway.catalog.has_changed(name, table, self._gateway.own_connection()):
            await self._gateway.catalog.reload()
            return Later(f"{name} was changed meanwhile")
        now = self._gateway.catalog.current.find(name)
        if _source_of(now) != _source_of(table):
            return Later(f"{name} takes tokens of another source now")
        return result


async def _require_name(taken: _Taken, table: ProtectedTable, write: Write) -> None:
    """Refuse a key of the message that is not the resource's one name: its writes would be in two partitions."""
    resource, key = taken.message.resource, taken.named.key
    if len(key) != len(table.key):
        return  # that is for the write to refuse
    name = known_name(table, key) or await name_of_key(taken.gateway, table, key)
    if name != resource:
        raise MalformedMessageError(f"key: {resource[:200]} is written {name[:200]}")
    if write.verb == "post":
        made = await name_of_body(taken.gateway, table, write.body)
        if made != resource:
            what = f"it makes the row {made[:200]}" if made else f"it does not name {', '.join(table.key)}"
            raise MalformedMessageError(f"body: {what}, and the key of the message is {resource[:200]}")


def _of_caller(result: Verdict, caller: Caller) -> Verdict:
    """Note with what is kept whose write it was: by now that is proven."""
    if not isinstance(result, Decided) or result.came_to is None:
        return result
    return replace(result, owner=whose(caller))


def _malformed(error: MalformedMessageError) -> Decided:
    decided = of_problem("failed", bad_request(f"message: {error}"))
    return replace(decided, late=isinstance(error, LateMessageError))


def _source_of(table: Table | None) -> str | None:
    return table.fence.source if table is not None and table.fence is not None else None


def _misplaced(received: Received, standing: QueueNow) -> Decided | None:
    """Refuse a message that is not in the partition of its key."""
    meant = _partition_of(received.message.key, standing.partitions)
    if meant == received.position.partition:
        return None
    why = (
        f"message: partition: it is in {received.position.partition}, and its key belongs to {meant}: only there are"
        " all writes of its resource in order. Producers choose it by murmur2 of the key"
    )
    return replace(of_problem("failed", bad_request(why)), misplaced=True)


_partition_of = lru_cache(maxsize=10_000)(partition_of)
"""Hashing a key takes as long as reading its message."""

_JSON: Final = b"application/json"
_TIMED_OUT: Final = "57014"
_YOUNG: Final = 60.0
"""Seconds after which a record may be forgotten at the earliest, where a clock is ten minutes off."""


@lru_cache(maxsize=256)  # most messages have the same
def _headers_of(
    prefer: bytes | None, accept: bytes | None, content_type: bytes, idempotency_key: bytes | None
) -> tuple[RawHeaders, Headers]:
    """Give the headers that mean the same as over HTTP: in a row, and by their names."""
    given = (
        (b"prefer", prefer),
        (b"accept", accept),
        (b"content-type", content_type),
        (b"idempotency-key", idempotency_key),
    )
    headers = tuple((name, value) for name, value in given if value is not None)
    return headers, dict(headers)


def _result_of(gateway: Gateway, write: Write, outcome: Outcome, *, positioned: bool) -> Verdict:
    if isinstance(outcome, Problem):
        return _by_problem(outcome, positioned=positioned)
    if not isinstance(outcome, Replayed):
        return APPLIED
    if outcome.of_message:
        return Before()
    # Another message landed under the client's key before: this one gets a record of its own.
    asked, rows = outcome.asked(write), outcome.rows[0] if outcome.rows else None
    return Decided("applied", recorded(gateway, asked, outcome, rows, asked.preferences, again=True))


def _by_problem(problem: Problem, *, positioned: bool = False) -> Verdict:
    kind = problem.type
    if kind.retryable:
        # A quarantined source of locks concerns its tables only. A code beside it is an SQLSTATE of this statement.
        of_all = kind is DATABASE_UNAVAILABLE or (positioned and kind is SOURCE_QUARANTINED)
        too_slow = problem if problem.code == _TIMED_OUT else None
        return Later(problem.detail, everything=of_all and not problem.code, too_slow=too_slow)
    if kind in (STALE_TOKEN, SPENT_TOKEN):
        return MarkReached(problem) if positioned else of_problem("refused", problem)
    if positioned and kind in (UNISSUED_TOKEN, WRONG_TOKEN_SOURCE):
        return Later(problem.detail, everything=True)  # the generation was raised since the log was looked at
    return of_problem("failed", problem)
