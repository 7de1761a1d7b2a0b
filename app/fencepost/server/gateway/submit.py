"""Submitting: a write of one row is put into a queue, and answered when it is safe there. A consumer applies it.

What can be known without the row is answered now, and not later by a dead letter: an unknown table or column, a key
that does not fit, no token where the table's tokens are a lock's, a role that may not write so, too many letters as it
is. Where the name of the resource is known without PostgreSQL (naming.py), none is needed: writes are taken while it is
down. What it last said of a role's privileges, and of letters, counts then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.server.fence.problem_types import (
    PERMISSION_DENIED,
    QUEUE_FAILED,
    QUEUE_UNAVAILABLE,
    QUEUED_AS_ROLE,
    SUBMISSION_UNKNOWN,
    TOO_MANY_LETTERS,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import (
    Authority,
    not_with_queue,
    require_columns,
    require_key,
    require_once,
    require_protected,
    require_token,
    target_of,
)
from fencepost.server.gateway.refusals import QUARANTINED_RETRY_AFTER, RETRY_AFTER
from fencepost.server.gateway.results import whose
from fencepost.server.gateway.seals import elsewhere
from fencepost.server.gateway.writes.culprit import with_column
from fencepost.server.gateway.writes.keyed import replaceable
from fencepost.server.gateway.writes.keys import doubtful_columns, require_same_key
from fencepost.server.gateway.writes.marks import marks_of
from fencepost.server.gateway.writes.naming import name_of_body, name_of_key
from fencepost.server.gateway.writes.write import OneRow, Write
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.tables import ProtectedTable, Table
from fencepost.server.queues.log import LogError, LogUnavailableError, LogUnknownError, Message
from fencepost.server.queues.message import WriteId, WriteMessage, message_of, new_nonce, sign

AsMessage = Callable[[], WriteMessage]
"""Says what a write's request says, as a message does; resource, token and nonce are added here."""


@dataclass(slots=True, kw_only=True)
class Submitted(Done):
    """A write is in its queue."""

    rows: list[str] = field(default_factory=list)
    write_id: WriteId


def is_queued(write: Write, table: Table) -> bool:
    """Whether a write is to be queued: because its request prefers that, or its table takes no others."""
    return write.preferences.queued or (table.fence is not None and table.fence.queue is not None)


async def submit(gateway: Gateway, write: Write, as_message: AsMessage, found: Table) -> Outcome:
    """Put a write into the queue of its table, or into the gateway's default queue."""
    if gateway.together is not None:
        return bad_request(
            f"{write.table} takes its writes by a queue, which is decided later: it cannot be part of a batch that"
            " lands as a whole."
        )
    if not write.single:
        return _of_many(found)
    async with gateway.place():
        return await _submit(gateway, write, as_message, found)


def _of_many(table: Table) -> Problem:
    if table.fence is not None and table.fence.queue is not None:
        return not_with_queue(table.fence, "a write of several rows")
    return bad_request(
        "Prefer: respond-async: only a write of one row can be queued, because an order is one of a resource.",
        "Send each object by itself; or leave out respond-async.",
    )


async def _submit(gateway: Gateway, write: Write, as_message: AsMessage, found: Table) -> Outcome:
    if gateway.caller.role is not None and gateway.seals.keys is None:
        return _no_keys(found.name, gateway.caller.role)
    ready = _ready(gateway, write, found)
    if isinstance(ready, Problem):
        return ready
    (table, authority), message = ready, as_message()
    queue = table.fence.queue or gateway.default_queue
    if (refused := await _denied(gateway, table, write) or await _too_many_letters(gateway, queue)) is not None:
        return refused
    message.resource = await _name_of(gateway, table, write)
    if not message.resource:
        return bad_request(
            f"body: a row of {table.name} that is to be queued names its key, {', '.join(table.key)}: the writes of a"
            " resource are in one order, and so it must have a name.",
            "Choose the key, for example a UUID; or leave out Prefer: respond-async.",
        )
    if (refused := _elsewhere(table, authority, message.resource)) is not None:
        return refused
    await _require_one_key(gateway, table, write)
    message.token = write.token
    message.nonce = new_nonce()
    return await _append(gateway, queue, message)


def _no_keys(table: str, role: str) -> Problem:
    return Problem(
        QUEUED_AS_ROLE,
        f"{table}: writes of the role {role} cannot be queued here: this gateway has no keys to sign whose they are.",
        hint="FENCEPOST_SEAL_KEYS_FILE (--seal-keys-file) names the file with them, at gateways and consumers.",
    )


async def _too_many_letters(gateway: Gateway, queue: str) -> Problem | None:
    full = await gateway.letters.why_full(gateway.database, queue, whose(gateway.caller))
    if full is None:
        return None
    return Problem(
        TOO_MANY_LETTERS,
        f"{queue}: too many dead letters wait for an operator: {full}.",
        hint="`fencepost dead retry` or `fencepost dead drop` makes room. FENCEPOST_MAX_LETTER_BYTES sets the most.",
        retry_after=QUARANTINED_RETRY_AFTER,
        extra={"queue": queue},
    )


def _elsewhere(table: ProtectedTable, authority: Authority | None, resource: str) -> Problem | None:
    """Refuse a seal that is for other resources. The scope of a row is not known yet: it is found out when the write
    is applied, where the seal is judged again in any case.
    """
    if authority is None or authority[1] is None or not marks_of(table).names_rows:
        return None
    return elsewhere(authority[1], authority[0], (resource,))


def _ready(gateway: Gateway, write: Write, found: Table) -> tuple[ProtectedTable, Authority | None] | Problem:
    table = require_protected(found)
    if isinstance(table, Problem):
        return table
    if isinstance(write.target, OneRow):
        require_key(table, write.target.key)
    require_columns(table, write.body.columns)
    target_of(table, write.select, gateway.max_answer_bytes, shown=write.shown)
    if (keyless := require_once(table.fence, write.idempotency_key)) is not None:
        return keyless
    if table.fence.queue is not None:
        if write.token is not None:
            return not_with_queue(table.fence, "a write with an X-Fence-Token")
        return table, None
    checked = require_token(table, write.token, gateway.seals)
    return checked if isinstance(checked, Problem) else (table, checked)


async def _denied(gateway: Gateway, table: ProtectedTable, write: Write) -> Problem | None:
    """Refuse a write whose role lacks a privilege, as PostgreSQL would. The login of consumers has those of the
    gateway's.
    """
    privileges = await gateway.privileges.of(gateway.database, gateway.caller.role, table)
    if privileges is None:
        return None
    sets, target = write.body.columns, target_of(table, write.select, gateway.max_answer_bytes, shown=write.shown)
    if write.verb != "post":
        sets = tuple(column for column in sets if column not in table.key)
    if write.verb == "put":
        sets = (*sets, *replaceable(table, sets))
    denial = privileges.denial(table, write.verb, sets, target.columns)
    return None if denial is None else Problem(PERMISSION_DENIED, denial, code="42501", status=403)


async def _name_of(gateway: Gateway, table: ProtectedTable, write: Write) -> str:
    if isinstance(write.target, OneRow):
        return await name_of_key(gateway, table, write.target.key)
    return await name_of_body(gateway, table, write.body)


async def _require_one_key(gateway: Gateway, table: ProtectedTable, write: Write) -> None:
    """Refuse a body that contradicts the path's key. Only where their texts differ is PostgreSQL asked."""
    if isinstance(write.target, OneRow) and (doubtful := doubtful_columns(table, write.target.key, write.body)):
        body = write.body
        async with gateway.connection(table) as connection, with_column(connection, table, body), savepoint(connection):
            await require_same_key(connection, table, write.target.key, doubtful, body.text)


async def _append(gateway: Gateway, queue: str, message: WriteMessage) -> Outcome:
    log = gateway.queues.get(queue)
    if log is None:
        return Problem(
            QUEUE_FAILED,
            f"The queue {queue} is not configured at this gateway, which has {', '.join(sorted(gateway.queues))}.",
            hint="FENCEPOST_QUEUES names the queues of a gateway.",
            extra={"queue": queue},
        )
    try:
        position = await log.append(_signed(gateway, queue, message))
    except LogUnknownError as error:
        return Problem(
            SUBMISSION_UNKNOWN,
            f"It is not known whether the write is in the queue {queue}: {error}",
            hint="Repeat the request with the same Idempotency-Key: the write is done once."
            if message.idempotency_key is not None
            else f"It had no Idempotency-Key: look at {message.resource} before you submit it again.",
            resource=message.resource,
            retry_after=RETRY_AFTER,
            extra={"queue": queue},
        )
    except LogUnavailableError as error:
        return queue_unavailable(queue, error)
    except LogError as error:
        return Problem(QUEUE_FAILED, f"{queue}: {error}", resource=message.resource, extra={"queue": queue})
    return Submitted(write_id=WriteId(queue, position, message.nonce), resource=message.resource)


def _signed(gateway: Gateway, queue: str, message: WriteMessage) -> Message:
    """Make the message, signed as one of its caller where that one has a role."""
    made, keys = message_of(message), gateway.seals.keys
    if gateway.caller.role is None or keys is None:
        return made
    return sign(made, queue, keys, gateway.caller, gateway.seals.now())


def queue_unavailable(queue: str, error: LogError) -> Problem:
    """The problem when a log could not be asked."""
    return Problem(QUEUE_UNAVAILABLE, f"{queue}: {error}", retry_after=RETRY_AFTER, extra={"queue": queue})
