"""Idempotency-Key (R16): a write that landed is answered again, and not done again.

One transaction: 1 the key is looked up, its lock tried without waiting, and looked up again in a new statement (all of
that is fencepost.idem_begin); 2 the write; 3 the record of its answer, last; COMMIT. So a record is there if, and only
if, the write landed. The look-up precedes the fence: a caller that repeats a write that landed gets its answer, also
after the lock has changed hands. Refusals are not stored, and the token is not part of the payload: a later holder may
repeat.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fencepost.fencing.problem_types import KEY_IN_FLIGHT, KEY_REUSED
from fencepost.fencing.problems import Problem
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.refusals import RETRY_AFTER
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import RefusedError, UnavailableError, map_errors
from fencepost.storage.statements import idempotency
from fencepost.storage.statements.idempotency import Recorded, State

RECORD: Final = ("fencepost", "idempotency_pkey", "23505")
"""What a second record of a key meets: schema, constraint, SQLSTATE."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request's key, the hash of its payload, and how its success will be answered."""

    key: str
    payload_hash: bytes
    render: Callable[[Done], Recorded]


@dataclass(slots=True)
class Replayed(Done):
    """What was answered when the write landed."""

    answer: Recorded | None = None


async def attempt_keyed(
    connection: Connection, once: IdempotentRequest, attempt: Callable[[Connection], Awaitable[Outcome]]
) -> Outcome:
    """Attempt a keyed write in the transaction that is open; leaving it by a Problem must roll it back."""
    try:
        with map_errors(writing=True):
            found = await idempotency.begin(connection, once.key, once.payload_hash)
    except RefusedError as error:  # a time limit, say: no refusal of the write, which may have landed before
        raise UnavailableError(f"the Idempotency-Key could not be looked up: {error}") from error
    if (known := answer_of(found)) is not None:
        return known
    outcome = await attempt(connection)
    if not isinstance(outcome, Problem):
        with map_errors(writing=True):
            await idempotency.record(connection, once.key, once.payload_hash, once.render(outcome))
    return outcome


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


def landed_meanwhile(error: RefusedError) -> bool:
    """Whether another request with the same key has landed in spite of the lock: then its answer is ours."""
    return (error.schema, error.constraint, error.sqlstate) == RECORD
