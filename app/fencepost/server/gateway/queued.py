"""What became of a queued write: its record says so; where there is none, its log shows whether it is still to come.

A write of a caller with a role is there for that caller only. What others are answered is what an id with another last
part is answered, word for word, whatever became of the write.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from fencepost.server.fence.problem_types import WRITE_NOT_FOUND
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.results import Asked, is_for, unavailable, whose
from fencepost.server.gateway.submit import queue_unavailable
from fencepost.server.postgres import queues
from fencepost.server.postgres.database import run_write
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.queues.log import Log, LogError, Received
from fencepost.server.queues.message import WriteId, claimed, hash_of, nonce_of

Found = Recorded | Problem | None
"""What was answered; None: it is not decided yet."""


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
        return unavailable(str(error))
    except LogError as error:
        return queue_unavailable(write_id.queue, error)


async def wait(gateway: Gateway, write_id: WriteId, within: float, caller: str) -> Found:
    """Wait until a write that is queued is decided, for so many seconds. None: it was not."""
    look = partial(_look, gateway)
    return await gateway.results.wait(look, _asked(gateway, write_id), within, caller)


def _asked(gateway: Gateway, write_id: WriteId) -> Asked:
    return Asked(str(write_id), whose(gateway.caller))


async def _look(gateway: Gateway, asked: Sequence[Asked]) -> dict[Asked, Recorded]:
    write_ids = list({each.write_id for each in asked})
    # For writing: a result that is found is first made as safe as a commit is.
    found = await run_write(
        gateway.database.for_writing, lambda connection: queues.results(connection, write_ids), repeatable=True
    )
    of_each = {each: found[each.write_id] for each in asked if each.write_id in found}
    return {
        each: result.answer
        for each, result in of_each.items()
        if is_for(result.answer, each.whose, same_id=result.id == each.write_id)
    }


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
