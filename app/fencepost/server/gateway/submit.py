"""Submitting: a write of one row is put into a queue, and answered when it is safe there. A consumer applies it.

What can be known without the row is answered now, and not later by a dead letter: an unknown table or column, a key
that does not fit, no token where the table's tokens are a lock's, a role that may not write so, too many letters as
it is. Where the name of the resource is known without PostgreSQL (`known_name`), none is needed: writes are taken
while it is down. What it last said of a role's privileges, and of letters, counts then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fencepost.server.fence.problem_types import (
    PERMISSION_DENIED,
    QUEUE_FAILED,
    QUEUE_UNAVAILABLE,
    QUEUED_AS_ROLE,
    SUBMISSION_UNKNOWN,
    TOO_MANY_LETTERS,
    WRITE_NOT_FOUND,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import Authority, Plan, not_with_queue, require_token
from fencepost.server.gateway.results import AskedWrite, is_for, results_unavailable, whose
from fencepost.server.gateway.write import (
    OneRow,
    Write,
    doubtful_columns,
    name_of_body,
    name_of_key,
    require_same_key,
    with_column,
)
from fencepost.server.postgres import queues
from fencepost.server.postgres.database import run_write, savepoint
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.queues import Result
from fencepost.server.postgres.tables import ProtectedTable
from fencepost.server.queues.log import Log, LogError, LogUnavailableError, LogUnknownError, Message, Received
from fencepost.server.queues.message import (
    WriteId,
    WriteMessage,
    claimed,
    hash_of,
    message_of,
    new_nonce,
    nonce_of,
    sign,
)

AsMessage = Callable[[], WriteMessage]
"""Says what a write's request says, as a message does; resource, token and nonce are added here."""


@dataclass(slots=True, kw_only=True)
class Submitted(Done):
    """A write is in its queue."""

    rows: list[str] = field(default_factory=list)
    write_id: WriteId


async def submit(gateway: Gateway, write: Write, as_message: AsMessage, plan: Plan) -> Outcome:
    """Put a write into the queue of its table, or into the gateway's default queue. Its plan says that it fits."""
    fence = plan.table.fence
    if gateway.together is not None:
        return bad_request(
            f"{write.table} takes its writes by a queue, which is decided later: it cannot be part of a batch that"
            " lands as a whole."
        )
    if not write.single and plan.queued:
        return not_with_queue(fence, "a write of several rows")
    if not write.single:
        return bad_request(
            "Prefer: respond-async: only a write of one row can be queued, because an order is one of a resource.",
            "Send each object by itself; or leave out respond-async.",
        )
    async with gateway.place():
        return await _submit(gateway, write, as_message, plan)


async def _submit(gateway: Gateway, write: Write, as_message: AsMessage, plan: Plan) -> Outcome:
    table = plan.table
    if gateway.caller.role is not None and gateway.seals.keys is None:
        return _no_keys(table.name, gateway.caller.role)
    authority: Authority | None = None
    if plan.queued and write.token is not None:
        return not_with_queue(table.fence, "a write with an X-Fence-Token")
    if not plan.queued:
        checked = require_token(table, write.token, gateway.seals)
        if isinstance(checked, Problem):
            return checked
        authority = checked
    message = as_message()
    queue = table.fence.queue or gateway.default_queue
    if (refused := await _denied(gateway, plan, write) or await _too_many_letters(gateway, queue)) is not None:
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
    )


async def _too_many_letters(gateway: Gateway, queue: str) -> Problem | None:
    full = await gateway.letters.why_full(gateway.database, queue, whose(gateway.caller))
    if full is None:
        return None
    return Problem(
        TOO_MANY_LETTERS,
        f"{queue}: too many dead letters wait for an operator: {full}.",
        extra={"queue": queue},
    )


def _elsewhere(table: ProtectedTable, authority: Authority | None, resource: str) -> Problem | None:
    """Refuse a seal that is for other resources. The scope of a row is not known yet: it is found out when the write
    is applied, where the seal is judged again in any case.
    """
    if authority is None or authority[1] is None or table.fence.scope is not None:
        return None
    return elsewhere(authority[1], authority[0], (resource,))


async def _denied(gateway: Gateway, plan: Plan, write: Write) -> Problem | None:
    """Refuse a write whose role lacks a privilege, as PostgreSQL would. The login of consumers has those of the
    gateway's.
    """
    privileges = await gateway.privileges.of(gateway.database, gateway.caller.role, plan.table)
    if privileges is None:
        return None
    denial = privileges.denial(plan.table, write.verb, plan.change.sets, plan.change.target.columns)
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
    return Problem(QUEUE_UNAVAILABLE, f"{queue}: {error}", extra={"queue": queue})


# What became of a queued write: its record says so; where there is none, its log shows whether it is still to come.
#
# A write of a caller with a role is there for that caller only. What others are answered is what an id with another
# last part is answered, word for word, whatever became of the write.

Found = Result | Problem | None
"""What it came to; None: it is not decided yet."""


async def find(gateway: Gateway, write_id: WriteId) -> Found:
    """Look a write up, at once. A Problem: there is none, or it cannot be found out.

    With authentication an id is found by its last part only, which nobody can guess.
    """
    if gateway.caller.name and write_id.nonce is None:
        return _not_found(write_id, "with authentication a write is found by its whole id")
    asked = _asked(gateway, write_id)
    try:
        found = await _look(gateway, [asked])
        if asked in found:
            return found[asked]
        missing = await _missing(gateway, write_id)
        if missing is None:
            return None
        # It may have been decided between the two questions.
        return (await _look(gateway, [asked])).get(asked, missing)
    except StorageError as error:
        return results_unavailable(str(error))
    except LogError as error:
        return queue_unavailable(write_id.queue, error)


async def wait(gateway: Gateway, write_id: WriteId, within: float, caller: str) -> Found:
    """Wait until a write that is queued is decided, for so many seconds. None: it was not."""
    look = partial(_look, gateway)
    return await gateway.results.wait(look, _asked(gateway, write_id), within, caller)


def _asked(gateway: Gateway, write_id: WriteId) -> AskedWrite:
    return AskedWrite(str(write_id), whose(gateway.caller))


async def _look(gateway: Gateway, asked: Sequence[AskedWrite]) -> dict[AskedWrite, Result]:
    write_ids = list({each.write_id for each in asked})
    # For writing: a result that is found is first made as safe as a commit is.
    found = await run_write(
        gateway.database.for_writing, lambda connection: queues.results(connection, write_ids), repeatable=True
    )
    of_each = {each: found[each.write_id] for each in asked if each.write_id in found}
    return {each: result for each, result in of_each.items() if is_for(result, each)}


async def _missing(gateway: Gateway, write_id: WriteId) -> Problem | None:
    """Say why there is no result of a write; None: it is in the queue. Raises LogError."""
    log = gateway.queues.get(write_id.queue)
    if log is None:
        return _not_found(write_id, f"this gateway has no queue {write_id.queue}, and no result of such a write")
    position = write_id.position
    state = await log.state()
    if position.partition >= state.partitions:
        return _not_found(write_id, f"{write_id.queue} has {state.partitions} partitions, counted from 0")
    if position.offset >= state.ends[position.partition]:
        return _not_found(write_id, "no write has had this place in the queue")
    return await _forgotten(log, write_id, whose(gateway.caller))


async def _forgotten(log: Log, write_id: WriteId, owner: str) -> Problem | None:
    """Say that the write at this place is decided, or is another one, or another caller's; None: it waits, as far as
    the log shows.
    """
    waiting = await log.waiting(write_id.position)
    if waiting is None:  # only the offset can be compared
        if write_id.position.offset < (await log.decided())[write_id.position.partition]:
            return _not_found(write_id, f"the write at this place in the queue is decided. {_WHY_NOT_FOUND}")
        return None
    if not waiting:
        return _not_found(
            write_id,
            f"no write waits at this place in the queue any more. {_WHY_NOT_FOUND}; or the log has lost it, and the"
            " queue was quarantined for that",
        )
    if not _is_meant(waiting[0], write_id, owner):
        return _not_found(write_id, "the write that waits at this place in the queue has another last part in its id")
    return None


def _is_meant(received: Received, write_id: WriteId, owner: str) -> bool:
    """Whether the message at an id's place is that of its write, and of this caller."""
    message = received.message
    nonce = nonce_of(message) or hash_of(write_id.queue, received)
    return write_id.nonce in (None, nonce) and whose(claimed(message)) == owner


_WHY_NOT_FOUND: Final = "Its result was forgotten, or its id has another last part"


def _not_found(write_id: WriteId, reason: str) -> Problem:
    return Problem(WRITE_NOT_FOUND, f"There is no result of {write_id}: {reason}.", extra={"queue": write_id.queue})
