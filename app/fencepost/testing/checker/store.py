"""The calls of a history, sorted on disk: by resource, by key, by set.

A history has its events in the order of time, and a model wants those of one resource together. SQLite sorts them in a
temporary database of its own, which has no name, spills to disk when it outgrows its cache, and is gone when it is
closed. So the memory that a check needs does not grow with the history.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Self

from fencepost.testing.checker.calls import NEVER, Call
from fencepost.testing.checker.verdict import Model
from fencepost.testing.history import NOT_READ, End, Event, Fault, Invoke, NotRead

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


class Store:
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
            elif isinstance(event, Fault) and event.kind == "killed":
                self.db.execute("INSERT INTO deaths VALUES (?, ?)", (event.target, event.time))
        for invoke in pending.values():
            self._add(invoke, None)
        self._flush()

    def doubled_id(self) -> int | None:
        """Give an id that two operations have, if there is one."""
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

    def resources(self, *ops: str) -> Iterator[tuple[str, Iterator[Call]]]:
        """Give the calls of each resource in the order of their begins, without repeated answers."""
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND op IN ({', '.join('?' * len(ops))})"
            " ORDER BY resource, began, id",
            ops,
        )
        for resource, rows in groupby(found, key=lambda row: str(row[4])):
            yield resource, map(self._call, rows)

    def of_resource(self, resource: str, ops: Sequence[str], *, until: int = NEVER, last: int = -1) -> list[Call]:
        """Give the last of a resource's calls of these kinds that began by `until`, in the order of their begins."""
        self._index()
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND began <= ?"
            f" AND op IN ({', '.join('?' * len(ops))}) ORDER BY began DESC, id DESC LIMIT ?",
            (resource, until, *ops, last),
        )
        return [self._call(row) for row in found][::-1]

    def deletes(self, resource: str) -> Iterator[Call]:
        """Give the deletes of a resource, one at a time."""
        return self._some(f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND op = 'delete'", resource)

    def above(self, resource: str, token: int) -> Iterator[Call]:
        """Give the calls of a resource with this token or a higher one, one at a time."""
        return self._some(f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND token >= ?", resource, token)

    def _some(self, query: str, *values: object) -> Iterator[Call]:
        self._index()
        return map(self._call, self.db.execute(query, values))

    def writers(self, resource: str, value: str) -> list[Call]:
        """Give the calls of a resource that wrote this value, or were to."""
        self._index()
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND value = ? ORDER BY began, id",
            (resource, value),
        )
        return [self._call(row) for row in found]

    def doubled_grants(self) -> list[tuple[str, int]]:
        """Give locks and tokens that were granted more than once."""
        return self.db.execute(
            "SELECT resource, shown FROM calls WHERE effect AND op = 'acquire' AND outcome = 'ok' AND shown > 0"
            " GROUP BY resource, shown HAVING count(*) > 1"
        ).fetchall()

    def grants(self, resource: str, token: int) -> list[Call]:
        """Give the grants of a lock with this token, in the order of their begins."""
        found = self.db.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE effect AND resource = ? AND op = 'acquire' AND shown = ?"
            " ORDER BY began, id",
            (resource, token),
        )
        return [self._call(row) for row in found]

    def named(self, resource: str, value: str | NotRead | None, tokens: Collection[int | None]) -> list[Call]:
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
        """Whether there is an operation that this model judges."""
        return self.db.execute(f"SELECT 1 FROM calls WHERE {_JUDGED[model]} LIMIT 1").fetchone() is not None

    def by_key(self) -> Iterator[tuple[str, list[tuple[int, Call]]]]:
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

    def _call(self, row: _Row) -> Call:
        invoke, end = _events(row)
        proof: tuple[Event, ...] = ()
        if row[21] is not None:
            other = self.db.execute(f"SELECT {_COLUMNS} FROM calls WHERE rowid = ?", (row[21],)).fetchone()
            again, answer = _events(other)
            proof = (again,) if answer is None else (again, answer)
        return Call(invoke, end, row[19], row[19] != NEVER, proof, row[22])

    def close(self) -> None:
        """Forget everything."""
        self.db.close()

    def __enter__(self) -> Self:
        return self

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
