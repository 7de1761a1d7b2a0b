"""Idempotency-Keys (R16): a write that landed is answered again, and not done again.

One transaction: 1 the key is looked up, its lock tried without waiting, and looked up again in a new statement (all
of that is fencepost.idem_begin); 2 the write; 3 the record of its answer, last; COMMIT. So a record is there if, and
only if, the write landed. The look-up precedes the fence: a caller that repeats a write that landed gets its answer,
also after the lock has changed hands. Refusals are not stored, and the token is not part of the payload: a later
holder may repeat.

A message of a queue has a key, too: its id, under the caller `queue`. Its record is made in the same transaction,
and in a batch nothing is looked up before. The fence refuses a message that comes again, because its token is not
above the mark; where the fence lets it pass (epoch), the primary key of the records undoes the second write (23505).
Then it is decided alone, where such a write is looked up as all others are, and answered again. A message whose
client gave it an Idempotency-Key has both: the two records are made in one transaction, or none is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import KEY_IN_FLIGHT, KEY_REUSED
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.refusals import RETRY_AFTER
from fencepost.server.gateway.write import IdempotencyKey
from fencepost.server.postgres import keyed
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import RefusedError, UnavailableError
from fencepost.server.postgres.keyed import Record, Recorded, State
from fencepost.server.postgres.tables import Table

RECORD: Final = ("fencepost", "idempotency_pkey", "23505")
"""What a second record of a key meets: schema, constraint, SQLSTATE."""
COPY: Final = ("fencepost", "idempotency_message_idx", "23505")
"""What the record of a message meets that is in its log twice."""

Render = Callable[[Done], Recorded]
"""Renders what a success is answered with, as it is kept for those who repeat the request."""


# Not frozen: it is made for each write that has a key.
@dataclass(slots=True)
class IdempotentRequest:
    """What makes a write happen once: a key, the hash of its payload, and what is kept under it."""

    key: str
    payload_hash: bytes
    render: Render
    """How its success is answered, which is kept."""
    caller: str = keyed.CALLER
    """Whose key it is: keys of two callers are two keys."""
    looked_up: bool = True
    """Whether the key is looked up before the write, also in a batch; else only alone."""
    owner: str | None = None
    """The caller with a role whose queued write it is."""
    message: "IdempotentRequest | None" = None
    """The message of a queue that carries the request, whose record is made with this one's."""

    def records(self, done: Done) -> list[Record]:
        """Give what is recorded when the write has landed, in the write's transaction."""
        own = (self.caller, self.key, self.payload_hash, self.render(done), self.owner)
        return [own] if self.message is None else [own, *self.message.records(done)]


def once_of(
    key: IdempotencyKey | None,
    caller: Caller,
    table: Table,
    render: Render | None,
    message: IdempotentRequest | None = None,
) -> IdempotentRequest | None:
    """Give what makes a write happen once: its client's key, the message that carries it, both, or neither.

    `render` gives the answer of its success, which is kept; needed with a key.
    """
    if key is None:
        return message
    if render is None:
        raise RuntimeError("a write with an Idempotency-Key is recorded as it is answered")
    return IdempotentRequest(key.text, key.payload_hash, render, _whose(caller, table), message=message)


def _whose(caller: Caller, table: Table) -> str:
    """Say whose the keys are: another role that sends the same key has another one. Under row security an answer may
    depend on more than the role: there each caller has keys of its own.
    """
    if caller.role is None:
        return keyed.CALLER
    whose = f"role {caller.role}"
    return f"{whose} caller {caller.name}" if table.row_security else whose


Keeping = tuple[str, bool] | None
"""How the answers of a batch are kept: whose the keys are, and whether they are looked up before. None: they are not
kept."""


def keeping(once: IdempotentRequest | None) -> Keeping:
    """Say how a request's answer is kept."""
    return None if once is None else (once.caller, once.looked_up)


@dataclass(slots=True)
class Replayed(Done):
    """What was answered when the write landed. `of_message`: it is what the message came to that carries the request,
    and not what another request with the same key did.
    """

    answer: Recorded | None = None
    of_message: bool = False


async def look_up(session: Session, once: IdempotentRequest) -> "Replayed | Problem | None":
    """Look the keys of a write up, first in the transaction that is open; None: it is new."""
    if once.message is not None and (known := await _look_up(session, once.message)) is not None:
        if isinstance(known, Replayed):
            known.of_message = True
        return known
    return await _look_up(session, once)


async def _look_up(session: Session, once: IdempotentRequest) -> "Replayed | Problem | None":
    try:
        return answer_of(await keyed.begin(session, once.caller, once.key, once.payload_hash))
    except RefusedError as error:  # for example a time limit: no refusal of the write, which may have landed before
        raise UnavailableError(f"the Idempotency-Key could not be looked up: {error}") from error


async def record(session: Session, once: IdempotentRequest, done: Done) -> None:
    """Record what a write has come to under its keys, last in its transaction."""
    for each in once.records(done):
        await keyed.record(session, each)


def answer_of(found: Recorded | State) -> Replayed | Problem | None:
    """Answer what the look-up of a key has found; None: the write is new."""
    if isinstance(found, Recorded):
        return Replayed([], answer=found)
    match found:
        case "new":
            return None
        case "in flight":
            return Problem(
                KEY_IN_FLIGHT,
                "A request with this Idempotency-Key is being worked on.",
                hint="Wait for its answer, or repeat it after Retry-After: then its answer is there.",
                retry_after=RETRY_AFTER,
            )
        case "reused":
            return Problem(
                KEY_REUSED,
                "This Idempotency-Key was used for another request: another method, table, key, query or body.",
                hint="Every write has a key of its own.",
            )


def copied(error: RefusedError) -> bool:
    """Whether the message of a queue was decided under another id: the log has it at two offsets."""
    return (error.schema, error.constraint, error.sqlstate) == COPY


def landed_meanwhile(error: RefusedError) -> bool:
    """Whether another request with the same key has landed in spite of the lock: then its answer is ours."""
    return (error.schema, error.constraint, error.sqlstate) == RECORD
