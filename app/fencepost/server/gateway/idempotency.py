"""Idempotency-Keys (R16): a write that landed is answered again, and not done again.

One transaction: 1 the key is looked up, its lock tried without waiting, and looked up again in a new statement (all
of that is fencepost.idem_begin); 2 the write; 3 the record of what it came to, last; COMMIT. So a record is there if,
and only if, the write landed. The look-up precedes the fence: a caller that repeats a write that landed gets its
answer, also after the lock has changed hands. Refusals are not stored, and the token is not part of the payload: a
later holder may repeat.

A record has the `Done` of the write, and what its request said about the answer. How that becomes an answer over HTTP
is said once, for the first request and for each that repeats it (http/answers.py).

A message of a queue has a key, too: its id, under the caller `queue`. Its record is made in the same transaction,
and in a batch nothing is looked up before. The fence refuses a message that comes again, because its token is not
above the mark; where the fence lets it pass (epoch), the primary key of the records undoes the second write (23505).
Then it is decided alone, where such a write is looked up as all others are, and answered again. A message whose
client gave it an Idempotency-Key has both: the two records are made in one transaction, or none is.
"""

import json
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

import orjson

from fencepost.server.fence.problem_types import DATABASE_REFUSED, KEY_IN_FLIGHT, KEY_REUSED, PROBLEM_TYPES
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import bounded_within
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.results import whose
from fencepost.server.gateway.write import (
    NO_PREFERENCES,
    IdempotencyKey,
    Listed,
    OneRow,
    Preferences,
    Verb,
    Write,
)
from fencepost.server.postgres import keyed
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import RefusedError, UnavailableError
from fencepost.server.postgres.keyed import Record, Recorded, State
from fencepost.server.postgres.tables import Table

RECORD: Final = ("fencepost", "idempotency_pkey", "23505")
"""What a second record of a key meets: schema, constraint, SQLSTATE."""
COPY: Final = ("fencepost", "idempotency_message_idx", "23505")
"""What the record of a message meets that is in its log twice."""


# Not frozen: it is made for each write that has a key.
@dataclass(slots=True)
class IdempotentRequest:
    """What makes a write happen once: a key, the hash of its payload, and what says how it is answered."""

    key: str
    payload_hash: bytes
    gateway: Gateway
    """As the caller has it."""
    write: Write | None
    """None: it is a claim."""
    caller: str = keyed.CALLER
    """Whose key it is: keys of two callers are two keys."""
    looked_up: bool = True
    """Whether the key is looked up before the write, also in a batch; else only alone."""
    message: "IdempotentRequest | None" = None
    """The message of a queue that carries the request, whose record is made with this one's."""

    def records(self, done: Done) -> list[Record]:
        """Give what is recorded when the write has landed, in the write's transaction."""
        owner = whose(self.gateway.caller) or None if self.caller == keyed.OF_QUEUES else None
        own = (self.caller, self.key, self.payload_hash, self._came_to(done), owner)
        return [own] if self.message is None else [own, *self.message.records(done)]

    def _came_to(self, done: Done) -> Recorded:
        write = self.write
        preferences = NO_PREFERENCES if write is None else write.preferences
        rows = ",".join(done.rows) if write is None or write.shown else None
        return recorded(self.gateway, write, done, rows, preferences)


def once_of(
    gateway: Gateway,
    key: IdempotencyKey | None,
    write: Write | None,
    table: Table,
    message: IdempotentRequest | None = None,
) -> IdempotentRequest | None:
    """Give what makes a write, or a claim, happen once: its client's key, the message that carries it, both, or
    neither. Another role that sends the same key has another one. Under row security an answer may depend on more than
    the role: there each caller has keys of its own.
    """
    if key is None:
        return message
    caller, of = gateway.caller, keyed.CALLER
    if caller.role is not None:
        of = f"role {caller.role} caller {caller.name}" if table.row_security else f"role {caller.role}"
    return IdempotentRequest(key.text, key.payload_hash, gateway, write, of, message=message)


Keeping = Literal["", "recorded", "looked up"]
"""How the answers of a batch are kept: not at all, under keys that are recorded, or looked up before, too."""


def keeping(once: IdempotentRequest | None) -> Keeping:
    """Say how a request's answer is kept."""
    return "" if once is None else "looked up" if once.looked_up else "recorded"


@dataclass(slots=True)
class Replayed(Done):
    """What a write came to when it landed, and what its request said about its answer. `rows` has the rows in one text;
    nothing where the answer had none.
    """

    counted: int = 0
    verb: Verb | None = None
    """None: it is a claim."""
    preferences: Preferences = NO_PREFERENCES
    exactly_one: bool = False
    again: bool = False
    """Whether that was the answer to a repetition already: of a message, whose client's key had landed before."""
    of_message: bool = False
    """Whether it is what the message came to that carries the request, and not what another request with the same key
    did. The rest of this is empty where the message was refused, or failed.
    """

    @property
    def count(self) -> int:
        return self.counted

    def asked(self, write: Write | None = None) -> Write:
        """Give the request that was answered. `write`: the one that repeats it, with other preferences maybe; None: all
        that counts is its verb, because it was of one row.
        """
        if write is None:
            write = Write(self.verb or "patch", "", Listed(1) if self.verb == "post" else OneRow(()), None)
        return replace(write, preferences=self.preferences, exactly_one=self.exactly_one)


def recorded(
    gateway: Gateway,
    write: Write | None,
    done: Done,
    rows: str | None,
    preferences: Preferences,
    *,
    again: bool = False,
) -> Recorded:
    """Make the record of a success: its rows, and as JSON the rest of `Replayed`; or, where the caller has had too much
    kept (outcomes.py), as if no rows had been preferred. `write`: None for a claim.
    """
    applied = preferences.applied
    if rows is not None and not gateway.kept.takes(gateway.caller.name, len(rows.encode())):
        rows, applied = None, preferences.without_rows()
    about = {
        "verb": None if write is None else write.verb,
        "exactly_one": write is not None and write.exactly_one,
        "preferences": applied.decode("latin-1"),
        "mark": None if again else done.mark,
        "created": done.created,
        "counted": done.count,
        "resource": done.resource,
        "scope": done.scope,
        "again": again,
    }
    return Recorded(orjson.dumps({name: value for name, value in about.items() if value}).decode(), rows)


_TYPES: Final = {each.slug: each for each in PROBLEM_TYPES}


def recorded_problem(problem: Problem) -> Recorded:
    """Make the record of a queued write that was refused, or failed. It is ASCII: a database need not be in UTF-8, and
    must be able to take what a client wrote, and what we did. A mark that no answer shows is not there either.
    """
    if not problem.shows_mark:
        problem = replace(problem, current_token=None)
    about = {each.name: getattr(problem, each.name) for each in fields(problem)}
    of_clients = {"resource": bounded_within(problem.resource), "extra": bounded_within(problem.extra)}
    about |= {"type": problem.type.slug, **of_clients}
    return Recorded(json.dumps(orjson.loads(orjson.dumps(about))))


def read_record(found: Recorded) -> Replayed | Problem:
    """Read what a write came to. What a newer version has added to a record is left out."""
    about = orjson.loads(found.outcome)
    if "type" in about:
        about["type"] = _TYPES.get(about["type"], DATABASE_REFUSED)
        return Problem(**{each.name: about[each.name] for each in fields(Problem) if each.name in about})
    about = {each.name: about[each.name] for each in fields(Replayed) if each.name in about}
    preferences = Preferences.of_answer(about.pop("preferences", "").encode("latin-1"))
    return Replayed([found.rows] if found.rows else [], preferences=preferences, **about)


async def look_up(session: Session, once: IdempotentRequest) -> "Replayed | Problem | None":
    """Look the keys of a write up, first in the transaction that is open; None: it is new."""
    if once.message is not None and (known := await _look_up(session, once.message)) is not None:
        return known
    return await _look_up(session, once)


async def _look_up(session: Session, once: IdempotentRequest) -> "Replayed | Problem | None":
    try:
        found = await keyed.begin(session, once.caller, once.key, once.payload_hash)
    except RefusedError as error:  # for example a time limit: no refusal of the write, which may have landed before
        raise UnavailableError(f"the Idempotency-Key could not be looked up: {error}") from error
    if once.caller != keyed.OF_QUEUES or not isinstance(found, Recorded):
        return answer_of(found)
    known = read_record(found)
    return replace(known, of_message=True) if isinstance(known, Replayed) else Replayed([], of_message=True)


async def record(session: Session, once: IdempotentRequest, done: Done) -> None:
    """Record what a write has come to under its keys, last in its transaction."""
    for each in once.records(done):
        await keyed.record(session, each)


def answer_of(found: Recorded | State) -> Replayed | Problem | None:
    """Answer what the look-up of a key has found; None: the write is new."""
    if isinstance(found, Recorded):
        return read_record(found)
    match found:
        case "new":
            return None
        case "in flight":
            return Problem(
                KEY_IN_FLIGHT,
                "A request with this Idempotency-Key is being worked on.",
                hint="Wait for its answer, or repeat it after Retry-After: then its answer is there.",
            )
        case "reused":
            return Problem(
                KEY_REUSED,
                "This Idempotency-Key was used for another request: another method, table, key, query or body.",
            )


def copied(error: RefusedError) -> bool:
    """Whether the message of a queue was decided under another id: the log has it at two offsets."""
    return (error.schema, error.constraint, error.sqlstate) == COPY


def landed_meanwhile(error: RefusedError) -> bool:
    """Whether another request with the same key has landed in spite of the lock: then its answer is ours."""
    return (error.schema, error.constraint, error.sqlstate) == RECORD
