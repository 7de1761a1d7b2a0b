"""Decides one message: what it comes to is kept first, a dead letter is put next, and only then is the message done.

Whichever of these steps a crash comes after, the message comes again, and each step finds what is there already: the
fence or the record of its id keeps the effect one, a kept answer stays the first one, a dead letter is there once. A
copy of the message, at another offset of the log, passes the fence; its record cannot be made, which undoes its effect,
and it is what the first one is.

A record stays for as long as its message may come again (queue_forgettable in queues.sql). One that comes later still,
to a consumer that was paused for long or because positions were set back, is below what the log has committed. That is
asked where the fence refuses it, and only there: what the log said may be wrong for a moment (an append that had its
position and was not committed yet), and a message that the fence lets pass must not be lost by that.
"""

import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from fencepost.server.consuming.applying import (
    Before,
    Decided,
    Later,
    Ledger,
    MarkReached,
    QueueNow,
    Verdict,
    of_problem,
    reason_of,
)
from fencepost.server.fence.problem_types import INTERNAL_ERROR, RESOURCE_STOPPED, SPENT_TOKEN
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import MalformedResourceError, parse_resource
from fencepost.server.gateway.results import whose
from fencepost.server.observe import events
from fencepost.server.observe.events import Emit
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import IN_HAND, Blocked, PartitionProgress, Result, State
from fencepost.server.queues.log import DeadLetter, DeadLetters, LogError, Message, Received
from fencepost.server.queues.message import MessageName, claimed, content_at, content_of, hash_of, id_at, nonce_of


class Reports:
    """Emits an event for each report of one queue, as one process consumes it."""

    def __init__(self, queue: str, emit: Emit) -> None:
        self._queue = queue
        self._emit = emit

    def paused(self, reason: str) -> None:
        """Nothing is decided, or nothing is taken, for now."""
        self._emit(events.ConsumerPaused(self._queue, reason))

    def resumed(self) -> None:
        self._emit(events.ConsumerResumed(self._queue))

    def dead_letter(self, received: Received, reason: str) -> None:
        resource = received.message.key.decode("utf-8", "replace")
        position = received.position
        self._emit(events.DeadLettered(self._queue, resource, position.partition, position.offset, reason))

    def blocked(self, received: Received, reason: str) -> None:
        """A message is tried in vain for long, and goes on being tried; called once for it."""
        resource = received.message.key.decode("utf-8", "replace")
        position = received.position
        self._emit(events.QueueBlocked(self._queue, resource, position.partition, position.offset, reason))

    def fault(self, error: Exception) -> None:
        """The gateway has a fault. Called where the error is handled."""
        self._emit(events.ConsumerFailed(self._queue, "".join(traceback.format_exception(error))))


_REASON: Final = 500
"""Characters of a reason that are noted."""


def noted_reason(reason: str) -> str:
    """Give what is noted of a reason: a server's text may be long, and have a NUL, which no text in PostgreSQL has."""
    return reason[:_REASON].replace("\0", "")


@dataclass(frozen=True, slots=True)
class _Blocked:
    resource: str
    because: str
    since: float


@dataclass(slots=True)
class _Partition:
    begun: dict[int, float] = field(default_factory=dict)
    """Offsets that were taken and are not decided, and when they were appended."""
    beyond: int = 0
    """The offset after the highest one that was taken."""
    applied: int = 0
    refused: int = 0
    failed: int = 0
    redelivered: int = 0
    blocked: dict[int, _Blocked] = field(default_factory=dict)
    """By offset, what is tried in vain."""
    changed: bool = False


class Progress:
    """How far a consumer has got with each partition, and what became of its messages since that was last noted."""

    def __init__(self) -> None:
        self.generation: int | None = None
        """That of the offsets; None before the log was looked at."""
        self._partitions: dict[int, _Partition] = {}

    def taken(self, received: Iterable[Received]) -> None:
        for each in received:
            partition = self._partitions.setdefault(each.position.partition, _Partition())
            partition.begun[each.position.offset] = each.at
            partition.beyond = max(partition.beyond, each.position.offset + 1)
            partition.changed = True

    def blocked(self, received: Received, reason: str, since: float) -> None:
        """This is tried in vain since then, by the clock that `collect` is given."""
        partition = self._partitions.setdefault(received.position.partition, _Partition())
        resource = received.message.key.decode("utf-8", "replace").replace("\0", "")
        found = _Blocked(resource, noted_reason(reason), since)
        if partition.blocked.get(received.position.offset) != found:
            partition.blocked[received.position.offset] = found
            partition.changed = True

    def decided(self, received: Received, state: State, *, before: bool) -> None:
        """This came to that; `before`: it had been decided before it was taken this time."""
        partition = self._partitions.setdefault(received.position.partition, _Partition())
        if before:
            partition.redelivered += 1
        elif state == "applied":
            partition.applied += 1
        elif state == "refused":
            partition.refused += 1
        else:
            partition.failed += 1
        partition.changed = True

    def done(self, received: Iterable[Received]) -> None:
        for each in received:
            partition = self._partitions.get(each.position.partition)
            if partition is not None:
                partition.begun.pop(each.position.offset, None)
                partition.blocked.pop(each.position.offset, None)
                partition.changed = True

    def lost(self, partitions: Iterable[int]) -> None:
        """These are another member's: what was counted is still noted, and where they are is not."""
        for number in partitions:
            if (partition := self._partitions.get(number)) is not None:
                partition.begun.clear()
                partition.blocked.clear()
                partition.beyond = 0

    def collect(self, now: float) -> list[PartitionProgress]:
        """Give what is to be noted, and begin anew."""
        collected = []
        for number, each in self._partitions.items():
            if not each.changed:
                continue
            decided = min(each.begun, default=each.beyond)
            oldest = min(each.begun.values(), default=None) or None  # 0: its log does not know
            longest = min(each.blocked.values(), key=lambda one: one.since, default=None)
            blocked = Blocked(longest.resource, longest.because, now - longest.since) if longest is not None else None
            counts = (each.applied, each.refused, each.failed, each.redelivered)
            collected.append(PartitionProgress(number, decided, oldest, *counts, blocked))
            each.applied = each.refused = each.failed = each.redelivered = 0
            each.changed = False
        return collected

    def put_back(self, collected: Iterable[PartitionProgress]) -> None:
        """This could not be noted: it is noted next time."""
        for each in collected:
            partition = self._partitions.setdefault(each.partition, _Partition())
            partition.applied += each.applied
            partition.refused += each.refused
            partition.failed += each.failed
            partition.redelivered += each.redelivered
            partition.changed = True


Apply = Callable[[Received, QueueNow, MessageName], Awaitable[Verdict]]
Prove = Callable[[Received, Decided], Awaitable[Verdict]]
"""Decides a message that is not to be applied: its caller is noted, where one is proven."""
OLD: Final = 0.5
"""After which part of the time for which records are kept a message is looked up before it is applied: what was kept
under an Idempotency-Key of the client may be forgotten from then on.
"""
MOST_FAULTS: Final = 5
"""How often a message may meet an error of the gateway's own, or the statement timeout, before it is a dead letter."""

_OF_RECORD: Final = 2000
"""Bytes that a dead letter is counted as beside its message."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A message is decided, and all that follows from it is done. `before`: it had been decided before; where its
    record was forgotten `state` is "applied", whatever it was.
    """

    state: State
    before: bool = False
    reason: str = ""
    """Why it is a dead letter."""


_APPLIED: Final = Settled("applied")


class Decider:
    """Decides messages of one queue. `kept_for`: how many seconds records are kept. `stop_resources`: a dead letter
    stops its resource.
    """

    def __init__(
        self, queue: str, apply: Apply, ledger: Ledger, dead: DeadLetters, *, now: Callable[[], float],
        kept_for: float = 86_400.0, stop_resources: bool = False, prove: Prove | None = None,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._apply = apply
        self._ledger = ledger
        self._dead = dead
        self._now = now
        self._old = kept_for * OLD
        self._stop_resources = stop_resources
        self._prove = prove
        self.stopped: dict[str, str] = {}
        """By resource, the dead letter that stopped it."""

    async def decide(
        self, received: Received, standing: QueueNow, faults: int = 0, too_slow: Problem | None = None
    ) -> Settled | Later:
        """Decide a message, as far as that is possible now. `faults`: how often it met a fault of the gateway, or was
        given up by PostgreSQL after the statement timeout; `too_slow`: what the latter said.
        """
        nonce = nonce_of(received.message) or hash_of(self._queue, received)
        name = MessageName(id_at(self._queue, received.position, nonce), content_of(received.message))
        try:
            if faults >= MOST_FAULTS:
                failed = Problem(INTERNAL_ERROR, f"The gateway failed {faults} times to apply it; see its log.")
                problem = failed if too_slow is None else too_slow
                return await self._settle(received, name, of_problem("failed", problem))
            return await self._decide(received, standing, name)
        except LogError as error:
            return Later(str(error))
        except (UnavailableError, OutcomeUnknownError) as error:
            return Later(str(error), everything=True)
        except (RefusedError, StorageError) as error:
            return Later(str(error))

    async def _decide(self, received: Received, standing: QueueNow, name: MessageName) -> Settled | Later:
        if self._now() - received.at >= self._old:
            found = await self._ledger.result(name)
            if found is not None:
                return await self._settle_before(received, found)
        stopped = self._stopped_by_another(received, name)
        if stopped is not None and self._prove is not None:
            result = await self._prove(received, stopped)
        else:
            result = stopped or await self._apply(received, standing, name)
        match result:
            case Later():
                return result
            case MarkReached(problem):
                return await self._overtaken(received, standing, name, problem)
            case Before():
                known = await self._before(received, standing, name)
                return known or Later("it was decided before, and that is not on record any more")
            case Decided():
                known = await self._before(received, standing, name) if result.late else None
                if result.misplaced:
                    name = replace(name, content=content_at(received.position, name.content))
                return known or await self._settle(received, name, result)

    async def _overtaken(
        self, received: Received, standing: QueueNow, name: MessageName, problem: Problem
    ) -> Settled | Later:
        known = await self._before(received, standing, name)
        if known is not None:
            return known
        if await self._ledger.generation() != standing.generation:
            return Later("the generation of the queue was raised meanwhile", everything=True)
        if problem.type is SPENT_TOKEN:  # the row's mark is the token of this very position
            return Settled("applied", before=True)
        return await self._settle(received, name, _without_record(problem))

    async def _before(self, received: Received, standing: QueueNow, name: MessageName) -> Settled | None:
        """Settle a message that was decided before, as far as that is known."""
        found = await self._ledger.result(name)
        if found is not None:
            return await self._settle_before(received, found)
        if await self._ledger.committed(received.position, standing.generation):
            return Settled("applied", before=True)
        return None

    def _stopped_by_another(self, received: Received, name: MessageName) -> Decided | None:
        if not self.stopped:
            return None
        resource = _resource_of(received)
        earlier = None if resource is None else self.stopped.get(resource)
        if earlier is None or earlier == name.id:
            return None
        detail = f"{resource} is stopped, since an earlier write of it is a dead letter: {earlier}."
        hint = "`fencepost dead retry` or `fencepost dead drop` lets its later writes go on."
        return of_problem("failed", Problem(RESOURCE_STOPPED, detail, hint=hint, resource=resource))

    async def _settle(self, received: Received, name: MessageName, decided: Decided) -> Settled:
        if decided.came_to is None:
            return _APPLIED if decided.state == "applied" else Settled(decided.state)
        # Also where whom it says it is of is not proven, nobody else is to see the page.
        claims = "" if decided.owner else whose(claimed(received.message))
        letter_bytes = _size_of(received.message) if decided.state == "failed" else None
        earlier = await self._ledger.keep(name, decided, decided.came_to, claims, letter_bytes)
        if earlier is not None:
            return await self._settle_before(received, earlier)
        if decided.state != "failed":
            return Settled(decided.state)
        return Settled("failed", reason=await self._bury(received, name, decided.came_to))

    async def _settle_before(self, received: Received, found: Result) -> Settled:
        """What was decided before: a dead letter may not have been put yet. One that was dropped or retried is not put
        again.
        """
        reason = ""
        if found.state == "failed" and found.letter is None:
            reason = await self._bury(received, MessageName(found.id, content_of(received.message)), found.came_to)
        return Settled(found.state, before=True, reason=reason)

    async def _bury(self, received: Received, name: MessageName, came_to: Recorded) -> str:
        write_id, reason = name.id, reason_of(came_to)
        resource = _resource_of(received)
        # Stopped first: who drops or retries the letter finds what it stopped.
        if self._stop_resources and resource is not None and resource not in self.stopped:
            await self._ledger.stop(resource, write_id)
            self.stopped[resource] = write_id
        await self._dead.put(DeadLetter(write_id, reason, received.position, received.message, self._now()))
        # Another consumer may have put it first, and an operator have dropped or retried that meanwhile: he notes so
        # before he removes it, and this looks after it put.
        found = await self._ledger.result(name)
        if found is not None and found.letter not in (None, IN_HAND):
            if resource is not None and self._stop_resources:
                await self._ledger.go_on(resource, write_id)
                self.stopped.pop(resource, None)
            await self._dead.drop(write_id)
        return reason


def _size_of(message: Message) -> int:
    """Count the bytes of a dead letter, and of the record that stays for as long."""
    headers = sum(len(name) + len(value) for name, value in message.headers)
    return _OF_RECORD + len(message.key) + len(message.value or b"") + headers


def _resource_of(received: Received) -> str | None:
    """Name the resource of a message; None where its key names none."""
    try:
        named = received.message.key.decode()
        parse_resource(named)
    except (UnicodeDecodeError, MalformedResourceError):
        return None
    return None if "\0" in named else named  # PostgreSQL's text has none


def _without_record(problem: Problem) -> Decided:
    detail = f"A newer write of the resource was applied, and there is no record of this one. {problem.detail}"
    return of_problem("failed", replace(problem, detail=detail))
