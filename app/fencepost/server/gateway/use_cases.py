"""What requests can ask for, from a table's name to an outcome: errors of storage become problems, and what an outdated
picture of the tables, or a session's old query plans, may have caused runs once more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    OUTCOME_UNKNOWN,
    PERMISSION_DENIED,
    QUEUE_FAILED,
    QUEUE_UNAVAILABLE,
    QUEUED_AS_ROLE,
    ROW_NOT_FOUND,
    SUBMISSION_UNKNOWN,
    TOKEN_REQUIRED,
    TOO_MANY_LETTERS,
    UNISSUED_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    WRITE_NOT_FOUND,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.gateway import claims, read
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.gathered import AskedWrite, is_for, results_unavailable, whose
from fencepost.server.gateway.idempotency import IdempotentRequest, Render, once_of
from fencepost.server.gateway.operations import execute
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import plan_of, replaceable
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.refusals import (
    QUARANTINED_RETRY_AFTER,
    RETRY_AFTER,
    SUPPRESSED,
    Authority,
    acting,
    as_for,
    not_with_queue,
    problem_of_refused,
    require_token,
    source_problem,
    target_of,
    unavailable,
    with_blocker,
    with_holders,
)
from fencepost.server.gateway.write import (
    OneRow,
    Write,
    doubtful_columns,
    name_of_body,
    name_of_key,
    refuse_expansion,
    require_same_key,
    with_column,
)
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import Accepted, Refused, Verb
from fencepost.server.postgres import queues
from fencepost.server.postgres.database import run_write, savepoint
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    SessionError,
    StorageError,
    UnavailableError,
)
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.query import OtherKeyError, QueryError, UnknownColumnError
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table
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
from fencepost.server.quota import PEER, UNKNOWN

# Submitting: a write of one row is put into a queue, and answered when it is safe there. A consumer applies it.
#
# What can be known without the row is answered now, and not later by a dead letter: an unknown table or column, a key
# that does not fit, no token where the table's tokens are a lock's, a role that may not write so, too many letters as
# it is. Where the name of the resource is known without PostgreSQL (`known_name`), none is needed: writes are taken
# while it is down. What it last said of a role's privileges, and of letters, counts then.

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
    if authority is None or authority[1] is None or table.fence.scope is not None:
        return None
    return elsewhere(authority[1], authority[0], (resource,))


def _ready(gateway: Gateway, write: Write, found: Table) -> tuple[ProtectedTable, Authority | None] | Problem:
    plan = plan_of(found, write, None, gateway.max_rows, gateway.max_answer_bytes)
    if isinstance(plan, Problem):
        return plan
    table = plan.table
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


# What became of a queued write: its record says so; where there is none, its log shows whether it is still to come.
#
# A write of a caller with a role is there for that caller only. What others are answered is what an id with another
# last part is answered, word for word, whatever became of the write.

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
        return results_unavailable(str(error))
    except LogError as error:
        return queue_unavailable(write_id.queue, error)


async def wait(gateway: Gateway, write_id: WriteId, within: float, caller: str) -> Found:
    """Wait until a write that is queued is decided, for so many seconds. None: it was not."""
    look = partial(_look, gateway)
    return await gateway.results.wait(look, _asked(gateway, write_id), within, caller)


def _asked(gateway: Gateway, write_id: WriteId) -> AskedWrite:
    return AskedWrite(str(write_id), whose(gateway.caller))


async def _look(gateway: Gateway, asked: Sequence[AskedWrite]) -> dict[AskedWrite, Recorded]:
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


# Each use case on the table of its name: again on a fresh picture of the tables, or in a fresh session, where that may
# help.

MOST_DOUBTS: Final = 3
"""How often a request that met DDL is run again. Each time it may wait for the table, while others change it again."""

Doubt = Literal["catalog", "answer", "session"] | None
"""Why a request may have failed for nothing: the picture of the database is outdated, or a session's query plans are.
answer: the picture may be, and where PostgreSQL cannot be asked the answer stands all the same."""


async def write(
    gateway: Gateway,
    request: Write,
    render: Render | None = None,
    message: IdempotentRequest | None = None,
    as_message: AsMessage | None = None,
) -> Outcome:
    """Write to a table, if no newer holder has: a PATCH, PUT, DELETE or POST of all rows that are meant, or of none. Or
    put the write into a queue (Submitted), where its request or its table wants that and there is `as_message`.

    `render` gives the answer that is kept under the request's Idempotency-Key; `message` carries it out of a queue.
    """

    def use(table: Table) -> Coroutine[Any, Any, Outcome]:
        refused = refuse_expansion(table, request.body, gateway.max_answer_bytes)
        if refused is not None:
            return _answered(refused)
        if as_message is not None and is_queued(request, table):
            return submit(gateway, request, as_message, table)
        once = once_of(request.idempotency_key, gateway.caller, table, render, message)
        return execute(gateway, request, once, table)

    return await on_table(gateway, request.table, request.verb, use)


async def _answered(outcome: Outcome) -> Outcome:
    return outcome


async def claim(gateway: Gateway, request: Claim, render: Render | None = None) -> Outcome:
    """Raise a mark, or return who has raised it further. `rows` has the row, or nothing where there is none. `render`
    gives the answer that is kept under the claim's Idempotency-Key.
    """
    use = partial(claims.write, gateway, request, render)
    return await on_table(gateway, request.resource.table, "claim", use, Catalog.find_or_scope)


async def explain(gateway: Gateway, resource: Resource, caller: str = UNKNOWN) -> Outcome:
    """Look a resource up: a row, or a scope (R8). What was never written has the mark 0. A row of a table with a scope
    has no mark of its own: its scope is shown.
    """
    use = partial(read.explain, gateway, resource, caller)
    return await on_table(gateway, resource.table, "read", use, Catalog.find_or_scope)


async def read_many(gateway: Gateway, request: ReadMany) -> Outcome:
    """Read what matches, at most max_rows of it."""
    return await on_table(gateway, request.table, "read", partial(read.read_many, gateway, request))


async def read_one(gateway: Gateway, request: ReadOne) -> Outcome:
    """Read a row by its key."""
    return await on_table(gateway, request.table, "read", partial(read.read_one, gateway, request))


async def on_table(
    gateway: Gateway,
    name: str,
    verb: Verb,
    use: Callable[[Table], Coroutine[Any, Any, Outcome]],
    find: Callable[[Catalog, str], Table | None] = Catalog.find,
) -> Outcome:
    """Run `use` on the table of this name; again on a fresh catalog while the picture proves outdated, and in a fresh
    session when that one's plans do. `find` returns the table that is meant.

    Errors of storage become problems here, and nowhere else; and here a refusal learns who is behind it (R18).
    """
    table = find(gateway.catalog.current, name)
    outcome, doubt = await _attempt(gateway, table, name, use)
    if isinstance(outcome, Problem):
        try:
            outcome, table = await _without_doubt(gateway, name, use, find, table, outcome, doubt)
        except UnavailableError as error:
            outcome = unavailable(error)
        except RefusedError as error:
            outcome = problem_of_refused(error)
        except SourceError as error:
            outcome = source_problem(error, table.fence.source if table is not None and table.fence is not None else "")
    if isinstance(outcome, Problem):
        outcome = as_for(gateway.caller, await with_holders(gateway, table, outcome))
        outcome = await with_blocker(gateway, table, outcome)
    _report(gateway, table, verb, outcome)
    return outcome


async def _without_doubt(
    gateway: Gateway,
    name: str,
    use: Callable[[Table], Coroutine[Any, Any, Outcome]],
    find: Callable[[Catalog, str], Table | None],
    table: Table | None,
    outcome: Outcome,
    doubt: Doubt,
) -> tuple[Outcome, Table | None]:
    """Run `use` again for as long as what refused it may be outdated; with the table that it ran on last."""
    for _ in range(MOST_DOUBTS):
        if doubt is None:
            break
        # The picture must be from after the attempt: that waited for a lock, maybe, while the table changed.
        failed = asyncio.get_running_loop().time()
        if await _has_changed(gateway, table, name, doubt):
            table = find(await gateway.catalog.loaded_after(failed), name)
        elif doubt != "session":
            break
        # Where a session was in doubt, all are new by now.
        outcome, doubt = await _attempt(gateway, table, name, use)
    if isinstance(outcome, Problem) and await _source_has_issued(gateway, table, outcome):
        outcome, _ = await _attempt(gateway, table, name, use)
    return outcome, table


async def _has_changed(gateway: Gateway, table: Table | None, name: str, doubt: Doubt) -> bool:
    """Look whether the picture of a table is outdated. UnavailableError where that cannot be asked, and matters."""
    try:
        async with gateway.look():
            return await gateway.catalog.has_changed(name, table, gateway.own_connection())
    except UnavailableError:
        if doubt == "answer":
            return False
        raise


async def _source_has_issued(gateway: Gateway, table: Table | None, refused: Problem) -> bool:
    """Ask the table's source whether it has issued a token that was refused as never issued (`protect --verify`)."""
    fence = table.fence if table is not None else None
    if refused.type is not UNISSUED_TOKEN or fence is None or not fence.verify or refused.presented_token is None:
        return False
    locks = gateway.sources.get(fence.source)
    return locks is not None and await locks.verify(refused.presented_token)


async def _attempt(
    gateway: Gateway, table: Table | None, name: str, use: Callable[[Table], Coroutine[Any, Any, Outcome]]
) -> tuple[Outcome, Doubt]:
    """Run once, and return what may be why it failed. A part of a transaction leaves its doubts to that."""
    if table is None:
        outcome, doubt = _unknown_table(name)
    else:
        try:
            outcome = await (use(table) if gateway.caller.role is None else acting(gateway, use(table)))
        except (QueryError, StorageError) as error:
            outcome, doubt = _problem_of(error, table)
        else:
            if not isinstance(outcome, Problem):
                return outcome, None
            doubt = _doubt_of_answer(outcome, table)
    if doubt is not None and gateway.together is not None:
        gateway.together.doubted.append((name, table))
        doubt = None
    return outcome, doubt


def _unknown_table(name: str) -> tuple[Outcome, Doubt]:
    return Problem(UNKNOWN_TABLE, f"There is no table {name}."), "catalog"


def _problem_of(error: QueryError | StorageError, table: Table) -> tuple[Outcome, Doubt]:
    """Give an error as a problem, and what may be behind it. Raises what is neither: RoleError."""
    match error:
        case QueryError():
            return bad_request(f"{error}"), _doubt_of_query(error)
        case RefusedError():
            if error.sqlstate == SUPPRESSED and table.row_security:
                return Problem(ROW_NOT_FOUND, f"Row security keeps {table.name} from being written there."), None
            return problem_of_refused(error, table), _doubt_of(error)
        case OutcomeUnknownError():
            detail = f"It is not known whether the write landed: {error}"
            return Problem(OUTCOME_UNKNOWN, detail, retry_after=RETRY_AFTER), None
        case UnavailableError():
            # A session that has lost what it had: its connection is closed, and another one has that.
            return unavailable(error), "session" if isinstance(error, SessionError) else None
        case _:
            raise error


def _doubt_of_answer(outcome: Problem, table: Table) -> Doubt:
    """A table that has just got a queue takes writes without a token; one that has just lost it takes others again. And
    where no partition can have a row, PostgreSQL has not compared the key: the row may be there by another one.
    """
    if outcome.type is UNPROTECTED_TABLE:
        return "catalog"
    queued = table.fence is not None and table.fence.queue is not None
    no_partition = outcome.type is ROW_NOT_FOUND and table.kind == "partitioned table"
    in_doubt = no_partition or outcome.type is TOKEN_REQUIRED or (queued and outcome.type is BAD_REQUEST)
    return "answer" if in_doubt else None


def _doubt_of_query(error: QueryError) -> Doubt:
    if isinstance(error, OtherKeyError):
        return "answer"
    return "catalog" if isinstance(error, UnknownColumnError) else None


def _doubt_of(error: RefusedError) -> Doubt:
    if error.of_an_old_query_plan:
        return "session"
    return "catalog" if error.may_be_outdated else None


def _report(gateway: Gateway, found: Table | None, verb: Verb, outcome: Outcome) -> None:
    # Names that no table has would make as many series of metrics as callers can invent.
    table = found.name if found is not None else ""
    if isinstance(outcome, Problem):
        gateway.report_if_forbidden(outcome)
        gateway.emit(
            Refused(
                table,
                verb,
                outcome.name,
                outcome.detail,
                outcome.resource,
                outcome.presented_token,
                outcome.current_token,
                gateway.caller.name or None,
                PEER.get(),
            )
        )
    elif isinstance(outcome, Submitted):
        gateway.emit(Accepted(table, "submit", 0))
    elif verb != "read":
        gateway.emit(Accepted(table, verb, len(outcome.rows)))
