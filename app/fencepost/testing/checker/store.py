"""What the checker reads of a history: calls, kept in order by resource; verdicts, contradictions, errors."""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Literal, get_args

from fencepost.testing.history import NOT_READ, End, Event, FaultEvent, Invoke, NotRead

# What keeps a history from being judged, although it is one.

_NEEDED: Final = {
    "register": "an accepted write, delete, claim or read, or a refusal of one as stale, as spent, or with a mark",
    "mutex": "a grant of a lock",
    "plain_mutex": "a grant of a lock",
    "once": "an accepted operation with an Idempotency-Key",
    "set": "an accepted read_set",
}
"""What a history must have for each model to have anything to judge."""


class NothingToCheckError(Exception):
    """No operation of the history is one that the models judge: it would keep every promise, whatever was done."""

    def __init__(self, models: Iterable[str], operations: int) -> None:
        needed = dict.fromkeys(f"{model}: {_NEEDED[model]}" for model in models)
        super().__init__(
            f"nothing to check: the history has {operations} operations, and none that could break a promise. One of"
            f" these is needed: {'; '.join(needed)}"
        )


class UndecidedError(Exception):
    """There are more ways to order the operations of one resource than can be looked through."""

    def __init__(self, resource: str, states: int) -> None:
        super().__init__(
            f"{resource} cannot be judged: too many operations under one token, or with unknown outcome, were under way"
            f" at the same time, and it can be in more than {states} states. Use fewer clients for this resource, or a"
            " token for each write"
        )


NEVER: Final = 2**63 - 1
"""The time by which an unknown operation has certainly happened."""

EFFECTS: Final = frozenset({"write", "delete", "claim"})
"""What raises a mark."""


@dataclass(frozen=True, slots=True)
class HistoryCall:
    """One operation. What has no end yet, or an unknown one, may have an effect at any time from its invoke on."""

    invoke: Invoke
    end: End | None
    ended: int
    """By when it has happened if it has; NEVER when it may still happen."""
    certain: bool
    """Whether it has certainly happened. Of a refused call, that there certainly was this refusal."""
    proof: tuple[Event, ...] = ()
    """Events of other operations that show when this one happened: answers that repeat its own."""
    highest: int | None = None
    """Of an unknown operation that was repeated under another token, with another unknown outcome: the highest of the
    tokens. At most one of these operations, which have the same key, has an effect; if it is certain, one has."""

    @property
    def id(self) -> int:
        return self.invoke.id

    @property
    def token(self) -> int:
        """The operation's token; 0 for none."""
        return self.invoke.token or 0

    @property
    def refused(self) -> bool:
        """Whether it certainly had no effect."""
        return self.end is not None and self.end.event == "refused"

    @property
    def events(self) -> tuple[Event, ...]:
        return (self.invoke, *(() if self.end is None else (self.end,)), *self.proof)


def in_time(calls: list[HistoryCall]) -> tuple[Event, ...]:
    """Give the events of calls in the order of their times, each once."""
    events = {event for call in calls for event in call.events}
    return tuple(sorted(events, key=lambda event: (event.time, isinstance(event, End), getattr(event, "id", 0))))


class Words:
    """Says what is wrong in a sentence, and then gives the operations that show it, each in a line. Times are seconds
    since the history's first event.
    """

    def __init__(self, zero: int) -> None:
        self._zero = zero

    def listed(self, sentence: str, calls: list[HistoryCall]) -> str:
        ordered = sorted(calls, key=lambda call: (call.invoke.time, call.id))
        return "\n".join([sentence, *(f"  {self.call(call)}" for call in ordered)])

    def time(self, time: int) -> str:
        """Write a time: `1.204 s`, with as many digits as there are, up to nanoseconds."""
        whole, rest = divmod(time - self._zero, 10**9)
        digits = f"{rest:09}".rstrip("0")
        return f"{whole}.{digits.ljust(3, '0')} s"

    def call(self, call: HistoryCall) -> str:
        """Describe one operation: who, what, from when to when, and the answer."""
        end = call.end
        begun = f"asked at {self.time(call.invoke.time)}"
        if end is None:
            return f"{self.deed(call)}: {begun}, no answer, and so it may have happened"
        if end.event == "unknown":
            why = f" ({end.why})" if end.why else ""
            proof = f", and happened by {self.time(call.ended)}, as a repeated answer shows" if call.certain else ""
            return f"{self.deed(call)}: {begun}, outcome unknown at {self.time(end.time)}{why}{proof}"
        return f"{self.deed(call)}: {begun}, {self._answer(call, end)} at {self.time(end.time)}"

    def deed(self, call: HistoryCall) -> str:
        """Describe what was asked for: `w3 wrote 'a' to orders/7 under token 33`."""
        invoke = call.invoke
        token = "" if invoke.token is None else f" under token {invoke.token}"
        key = "" if invoke.key is None else f" with the Idempotency-Key {invoke.key!r}"
        verbs = {
            "write": f"wrote {invoke.value!r} to {invoke.resource}",
            "delete": f"deleted {invoke.resource}",
            "claim": f"claimed {invoke.resource}",
            "read": f"read {invoke.resource}",
            "acquire": f"acquired {invoke.resource}",
            "release": f"released {invoke.resource}",
            "add": f"added {invoke.value!r} to {invoke.resource}",
            "read_set": f"read the set {invoke.resource}",
        }
        return f"{invoke.process} {verbs[invoke.op]}{token}{key}"

    def _answer(self, call: HistoryCall, end: End) -> str:
        if end.event == "refused":
            named = "" if end.mark is None else f", the mark being {end.mark},"
            return f"refused as {end.reason}{named}"
        again = "answered again with what was stored" if end.replayed else "accepted"
        if call.invoke.op == "acquire":
            return "granted" if end.token is None else f"granted with token {end.token}"
        if call.invoke.op in {"read", "read_set"}:
            again = "answered"
        saw = "" if end.value is NOT_READ else " with no row" if end.value is None else f" with {end.value!r}"
        mark = "" if end.token is None or not saw else f" and the mark {end.token}"
        return f"{again}{saw}{mark}"


Model = Literal["register", "mutex", "plain_mutex", "once", "set"]
"""register: accepted operations of a resource form one order in which tokens rise. mutex: so do grants of a lock.
plain_mutex: no two holders believe at the same time that they hold a lock; no lease can promise it. once: operations
with one Idempotency-Key have one effect. set: what was added is there afterwards."""

ALL_MODELS: tuple[Model, ...] = get_args(Model)
MODELS: tuple[Model, ...] = ("register", "mutex", "once", "set")
"""What is checked unless other models are asked for."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and the fewest events that show it."""

    model: Model
    resource: str
    words: str
    events: tuple[Event, ...]
    """In the order of their times. None of them can be left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and how much was looked at."""

    valid: bool
    violations: tuple[Violation, ...]
    operations: int
    accepted: int
    refused: int
    unknown: int
    resources: int


_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Calls of one resource that no order explains, in the order of their begins, and the one that has no place."""

    resource: str
    calls: list[HistoryCall]
    last: HistoryCall
    fenced: bool


def sentence_of(found: Contradiction, words: Words) -> str:
    """Say what is wrong in one sentence."""
    last, resource = found.last, found.resource
    if last.refused and last.end is not None:
        return _refusal(last, last.end)
    effects = [call for call in found.calls if call.invoke.op in EFFECTS and not call.refused]
    if found.fenced and len(found.calls) == len(effects) == _PAIR:
        return _falling(words, *effects)
    reads = [call for call in found.calls if call.invoke.op == "read"]
    if len(reads) == 1 and reads[0].end is not None:
        return _read(reads[0], reads[0].end, found)
    order = "in which tokens rise and " if found.fenced else ""
    return f"The operations of {resource} have no order {order}in which each answer is right at its time."


def _refusal(call: HistoryCall, end: End) -> str:
    invoke = call.invoke
    token = "" if invoke.token is None else f" under token {invoke.token}"
    refused = f"{invoke.process}'s {invoke.op} of {invoke.resource}{token} was refused as {end.reason}"
    if end.mark is not None:
        return (
            f"{refused}, the mark being {end.mark}, although {invoke.resource} can not have had a mark that allows this"
            " answer while it was under way."
        )
    above = "equal to" if end.reason == "spent" else "above"
    return f"{refused}, although the mark of {invoke.resource} can not have been {above} it by then."


def _falling(words: Words, one: HistoryCall, other: HistoryCall) -> str:
    higher, lower = (one, other) if one.token > other.token else (other, one)
    if higher.token == lower.token:
        return (
            f"{lower.invoke.resource} accepted token {lower.token} twice: from {one.invoke.process} and from"
            f" {other.invoke.process}. Under the rule strict a token is accepted once."
        )
    return (
        f"A stale {lower.invoke.op} was accepted: {words.deed(lower)} at {words.time(lower.invoke.time)}, and that was"
        f" accepted{_at(words, lower)}, after {higher.invoke.process}'s {higher.invoke.op} under token {higher.token}"
        f" had been accepted{_at(words, higher)}."
    )


def _at(words: Words, call: HistoryCall) -> str:
    return "" if call.ended == NEVER else f" at {words.time(call.ended)}"


def _read(read: HistoryCall, end: End, found: Contradiction) -> str:
    saw = "no row" if not isinstance(end.value, str) else repr(end.value)
    mark = "" if end.token is None else f" and the mark {end.token}"
    who = f"{read.invoke.process} read {saw}{mark} in {found.resource}"
    if not isinstance(end.value, str):
        return f"{who}, although a row was there, or the mark was another one, as long as this read took."
    writes = [call for call in found.calls if call.invoke.value == end.value]
    if not writes:
        return f"{who}, which no operation wrote."
    write = writes[0]
    if write.refused:
        return f"{who}, which {write.invoke.process} was to write: that was refused, and had an effect all the same."
    if write.invoke.time > read.ended:
        return f"{who} before {write.invoke.process} began to write it."
    return f"{who} at a time when this was not what {found.resource} held."


# The calls of a history, sorted on disk: by resource, by key, by set.
#
# A history has its events in the order of time, and a model wants those of one resource together. SQLite sorts them in
# a temporary database of its own, which has no name, spills to disk when it outgrows its cache, and is gone when it is
# closed. So the memory that a check needs does not grow with the history.

_TABLES: Final = """
CREATE TABLE calls (
    id INTEGER, began INTEGER, process TEXT, op TEXT, resource TEXT, token INTEGER, value TEXT, rule TEXT, key TEXT,
    answered INTEGER, outcome TEXT, saw TEXT, was_read INTEGER, shown INTEGER, expires INTEGER, replayed INTEGER,
    reason TEXT, mark INTEGER, why TEXT,
    ended INTEGER,   -- by when it happened, as the answers to its repetitions may show
    effect INTEGER,  -- 0: it changes nothing beside what another operation with its key has done
    proof INTEGER,   -- the rowid of the answer that showed it
    highest INTEGER  -- of operations with one key of which at most one has an effect: their highest token
);
CREATE TABLE seen (resource TEXT, reading INTEGER, value TEXT);
CREATE TABLE deaths (process TEXT, time INTEGER);
"""
_COLUMNS: Final = (
    "id, began, process, op, resource, token, value, rule, key, answered, outcome, saw, was_read, shown, expires,"
    " replayed, reason, mark, why, ended, effect, proof, highest"
)
_INSERT: Final = f"INSERT INTO calls ({_COLUMNS}) VALUES ({', '.join('?' * 23)})"
_JUDGED: Final[dict[Model, str]] = {
    "register": "op IN ('write', 'delete', 'claim', 'read')"
    " AND (outcome = 'ok' OR (outcome = 'refused' AND (reason IN ('stale', 'spent') OR mark IS NOT NULL)))",
    "mutex": "op = 'acquire' AND outcome = 'ok'",
    "plain_mutex": "op = 'acquire' AND outcome = 'ok'",
    "once": "key IS NOT NULL AND outcome = 'ok'",
    "set": "op = 'read_set' AND outcome = 'ok'",
}
"""The operations that can break the promises of a model: without one of them there is nothing to judge."""
_BATCH: Final = 5000
_Row = tuple[Any, ...]


class Store(AbstractContextManager["Store"]):
    """The calls of one history. Close it after use: a context manager."""

    def __init__(self) -> None:
        self.db = sqlite3.connect("")
        self.db.execute("PRAGMA journal_mode = OFF")
        self.db.execute("PRAGMA cache_size = -65536")  # KiB
        self.db.executescript(_TABLES)
        self._rows: list[_Row] = []
        self._first: int | None = None
        self._indexed = False

    def load(self, events: Iterable[Event]) -> None:
        """Take all events of a history. Raises BadHistoryError where one is wrong."""
        pending: dict[int, Invoke] = {}
        for event in events:
            if self._first is None:
                self._first = event.time
            if isinstance(event, Invoke):
                pending[event.id] = event
            elif isinstance(event, End):
                self._add(pending.pop(event.id), event)
            elif isinstance(event, FaultEvent) and event.kind == "killed":
                self.db.execute("INSERT INTO deaths VALUES (?, ?)", (event.target, event.time))
        for invoke in pending.values():
            self._add(invoke, None)
        self._flush()

    def doubled_id(self) -> int | None:
        found = self.db.execute("SELECT id FROM calls GROUP BY id HAVING count(*) > 1").fetchone()
        return None if found is None else int(found[0])

    def death(self, process: str, since: int) -> int:
        """Give when a process was killed, at or after a time; NEVER when it was not."""
        query = "SELECT min(time) FROM deaths WHERE process = ? AND time >= ?"
        (time,) = self.db.execute(query, (process, since)).fetchone()
        return NEVER if time is None else int(time)

    def settle(self, rowid: int, *, happened_by: int | None = None, proof: int | None = None) -> None:
        """Note that a call changes nothing, or that it happened by a time, as the answer to another call shows."""
        if happened_by is None:
            self.db.execute("UPDATE calls SET effect = 0 WHERE rowid = ?", (rowid,))
        else:
            self.db.execute("UPDATE calls SET ended = ?, proof = ? WHERE rowid = ?", (happened_by, proof, rowid))

    def group(self, rowids: Collection[int], highest: int) -> None:
        """Note that at most one of these calls, whose tokens are not above the highest, has an effect."""
        for rowid in rowids:
            self.db.execute("UPDATE calls SET highest = ? WHERE rowid = ?", (highest, rowid))

    def resources(self, *ops: str) -> Iterator[tuple[str, Iterator[HistoryCall]]]:
        """Give the calls of each resource in the order of their begins, without repeated answers."""
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND op IN ({', '.join('?' * len(ops))})"
            " ORDER BY resource, began, id",
            ops,
        )
        for resource, rows in groupby(found, key=lambda row: str(row[4])):
            yield resource, map(self._call, rows)

    def of_resource(
        self, resource: str, ops: Sequence[str], *, until: int = NEVER, last: int = -1
    ) -> list[HistoryCall]:
        """Give the last of a resource's calls of these kinds that began by `until`, in the order of their begins."""
        self._index()
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND began <= ?"
            f" AND op IN ({', '.join('?' * len(ops))}) ORDER BY began DESC, id DESC LIMIT ?",
            (resource, until, *ops, last),
        )
        return [self._call(row) for row in found][::-1]

    def deletes(self, resource: str) -> Iterator[HistoryCall]:
        return self._some(f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND op = 'delete'", resource)

    def above(self, resource: str, token: int) -> Iterator[HistoryCall]:
        """Give the calls of a resource with this token or a higher one, one at a time."""
        return self._some(f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND token >= ?", resource, token)

    def _some(self, query: str, *values: object) -> Iterator[HistoryCall]:
        self._index()
        return map(self._call, self.db.execute(query, values))

    def writers(self, resource: str, value: str) -> list[HistoryCall]:
        """Give the calls of a resource that wrote this value, or were to."""
        query = f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND value = ? ORDER BY began, id"
        return list(self._some(query, resource, value))

    def doubled_grants(self) -> list[tuple[str, int]]:
        return self.db.execute(
            "SELECT resource, shown FROM calls WHERE effect AND op = 'acquire' AND outcome = 'ok' AND shown > 0"
            " GROUP BY resource, shown HAVING count(*) > 1"
        ).fetchall()

    def grants(self, resource: str, token: int) -> list[HistoryCall]:
        """Give the grants of a lock with this token, in the order of their begins."""
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND op = 'acquire' AND shown = ?"
            " ORDER BY began, id",
            (resource, token),
        )
        return [self._call(row) for row in found]

    def named(self, resource: str, value: str | NotRead | None, tokens: Collection[int | None]) -> list[HistoryCall]:
        """Give the calls of a resource that wrote this value, and those with these tokens."""
        found = self.writers(resource, value) if isinstance(value, str) else []
        query = f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND token = ?"
        for token in tokens:
            found += [self._call(row) for row in self.db.execute(query, (resource, token))]
        return found

    def began(self) -> int:
        """Give the time of the first event: of a fault too, as in the report."""
        return self._first or 0

    def count(self) -> _Row:
        """Give the numbers of operations, of those that were accepted, refused, unknown, and of resources."""
        counted: _Row = self.db.execute(
            "SELECT count(*), coalesce(sum(outcome = 'ok'), 0), coalesce(sum(outcome = 'refused'), 0),"
            " coalesce(sum(outcome = 'unknown'), 0), count(DISTINCT resource) FROM calls"
        ).fetchone()
        return counted

    def judged(self, model: Model) -> bool:
        return self.db.execute(f"SELECT 1 FROM calls WHERE {_JUDGED[model]} LIMIT 1").fetchone() is not None

    def by_key(self) -> Iterator[tuple[str, list[tuple[int, HistoryCall]]]]:
        """Give the calls of each Idempotency-Key with their rowids, in the order of their begins."""
        found = self.db.execute(f"SELECT {_COLUMNS}, rowid FROM calls WHERE key IS NOT NULL ORDER BY key, began, id")
        for key, rows in groupby(found, key=lambda row: str(row[8])):
            yield key, [(row[-1], self._call(row[:-1])) for row in rows]

    def _add(self, invoke: Invoke, end: End | None) -> None:
        unknown = end is None or end.event == "unknown"
        self._rows.append(
            (
                *(invoke.id, invoke.time, invoke.process, invoke.op, invoke.resource, invoke.token, invoke.value),
                *(invoke.rule, invoke.key),
                *_answer(end),
                NEVER if unknown else end.time if end is not None else NEVER,
                1,
                None,
                None,
            )
        )
        if end is not None and end.values is not None:
            self.db.executemany(
                "INSERT INTO seen VALUES (?, ?, ?)", ((invoke.resource, invoke.id, value) for value in end.values)
            )
        if len(self._rows) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self.db.executemany(_INSERT, self._rows)
        self._rows.clear()

    def _index(self) -> None:
        if not self._indexed:
            self.db.execute("CREATE INDEX of_resource ON calls (resource, began, id)")
            self.db.execute("CREATE INDEX of_value ON calls (resource, value)")
            self.db.execute("CREATE INDEX of_token ON calls (resource, token)")
            self._indexed = True

    def _call(self, row: _Row) -> HistoryCall:
        invoke, end = _events(row)
        proof: tuple[Event, ...] = ()
        if row[21] is not None:
            other = self.db.execute(f"SELECT {_COLUMNS} FROM calls WHERE rowid = ?", (row[21],)).fetchone()
            again, answer = _events(other)
            proof = (again,) if answer is None else (again, answer)
        return HistoryCall(invoke, end, row[19], row[19] != NEVER, proof, row[22])

    def close(self) -> None:
        self.db.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _answer(end: End | None) -> _Row:
    if end is None:
        return (None, "unknown", None, 0, None, None, 0, None, None, None)
    was_read = end.value is not NOT_READ
    return (
        *(end.time, end.event, end.value if was_read else None, was_read, end.token, end.expires, end.replayed),
        *(end.reason, end.mark, end.why),
    )


def _events(row: _Row) -> tuple[Invoke, End | None]:
    invoke = Invoke(row[1], row[0], row[2], row[3], row[4], row[5], row[6], row[7], row[8])
    if row[9] is None:
        return invoke, None
    value = row[11] if row[12] else NOT_READ
    end = End(row[9], row[0], row[10], value, row[13], None, row[14], bool(row[15]), row[16], row[17], row[18])
    return invoke, end
