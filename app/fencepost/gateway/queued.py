"""What became of a queued write: its record says so; where there is none, its log shows whether it is still to come."""

from collections.abc import Sequence

from fencepost.fencing.problems import Problem
from fencepost.fencing.queue_problem_types import WRITE_NOT_FOUND
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.results import unavailable
from fencepost.gateway.submit import queue_unavailable
from fencepost.queues.log import Log, LogError
from fencepost.queues.message import nonce_of
from fencepost.queues.write_id import WriteId, hash_of
from fencepost.storage.connections.transactions import run_write
from fencepost.storage.errors import StorageError
from fencepost.storage.queues import results
from fencepost.storage.statements.idempotency import Recorded

Found = Recorded | Problem | None
"""What was answered; None: it is not decided yet."""


async def find(gateway: Gateway, write_id: WriteId) -> Found:
    """Look a write up, at once. A Problem: there is none, or it cannot be found out.

    With authentication an id is found by its last part only, which nobody can guess; and a caller with a role, who can
    queue no write (FP044), finds none.
    """
    if gateway.caller.name and (write_id.nonce is None or gateway.caller.role is not None):
        return _not_found(
            write_id, "with authentication a write is found by its whole id, and by callers without a role"
        )
    try:
        found = await _look(gateway, [str(write_id)])
        if str(write_id) in found:
            return found[str(write_id)]
        missing = await _missing(gateway, write_id)
        if missing is None:
            return None
        # It may have been decided between the two questions.
        return (await _look(gateway, [str(write_id)])).get(str(write_id), missing)
    except StorageError as error:
        return unavailable(str(error))
    except LogError as error:
        return queue_unavailable(write_id.queue, error)


async def wait(gateway: Gateway, write_id: WriteId, within: float, caller: str) -> Found:
    """Wait until a write that is queued is decided, for so many seconds. None: it was not."""
    return await gateway.results.wait(lambda asked: _look(gateway, asked), str(write_id), within, caller)


async def _look(gateway: Gateway, write_ids: Sequence[str]) -> dict[str, Recorded]:
    # For writing: a result that is found is first made as safe as a commit is.
    found = await run_write(
        gateway.database.for_writing, lambda connection: results.results(connection, write_ids), repeatable=True
    )
    return {write_id: result.answer for write_id, result in found.items()}


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
    return await _forgotten(log, write_id)


async def _forgotten(log: Log, write_id: WriteId) -> Problem | None:
    """Say that the write at this place is decided, or is another one; None: it waits, as far as the log shows."""
    waiting = await log.waiting(write_id.position)
    if waiting is None:  # only the offset can be compared
        is_decided = write_id.position.offset < (await log.decided())[write_id.position.partition]
    else:
        is_decided = not waiting
    if is_decided:
        return _not_found(
            write_id,
            "the write at this place in the queue is decided. Either its result was forgotten, or its id has another"
            " last part",
        )
    if waiting and write_id.nonce not in (None, nonce_of(waiting[0].message) or hash_of(write_id.queue, waiting[0])):
        return _not_found(write_id, "the write that waits at this place in the queue has another last part in its id")
    return None


def _not_found(write_id: WriteId, reason: str) -> Problem:
    return Problem(WRITE_NOT_FOUND, f"There is no result of {write_id}: {reason}.", extra={"queue": write_id.queue})
