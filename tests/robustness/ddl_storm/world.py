"""What the storm knows: its tables as they are now, every operation with its answer, and the tokens.

A logical row is a number below KEYS in a line of tables: a line is one table through all its names, keys and types. The
column `lk` names which row it is ("t3:7") and never changes; a check keeps it true to the key, so that a writer that is
behind cannot put a row where another one belongs.
"""

import asyncio
import contextlib
import heapq
import itertools
import random
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.support.interleave import Connection

KEYS: Final = 9
GROUPS: Final = 2
AHEAD: Final = 80
"""Operations between two changes by the DDL actor, about."""
PREFIX: Final = "acct"
APART: Final = "direct apart"
"""What is done to a partition while it is detached, and so no part of any table."""

Kind = Literal["plain", "pair", "parts"]
Outcome = Literal["open", "done", "refused", "maybe"]


@dataclass(frozen=True)
class KeyType:
    """A type of a key column: SQL from a bigint {0} and back, and the text of each value in a URL."""

    make: str
    read: str
    texts: tuple[str, ...]

    @classmethod
    def of(cls, make: str, read: str, text: str = "{0}") -> "KeyType":
        return cls(make, read, tuple(text.format(n, n + 1) for n in range(KEYS)))


TYPES: Final = {
    "integer": KeyType.of("({0})::integer", "{0}::bigint"),
    "bigint": KeyType.of("({0})::bigint", "{0}::bigint"),
    "text": KeyType.of("({0})::text", "{0}::bigint"),
    "varchar(9)": KeyType.of("({0})::varchar(9)", "{0}::bigint"),
    "character(5)": KeyType.of("({0})::text::character(5)", "{0}::text::bigint"),
    "numeric": KeyType.of("({0})::numeric", "{0}::bigint"),
    "numeric(10,1)": KeyType.of("({0})::numeric(10,1)", "{0}::bigint"),
    "date": KeyType.of("(date '2000-01-01' + ({0})::integer)", "({0} - date '2000-01-01')::bigint", "2000-01-0{1}"),
    "timestamp": KeyType.of(
        "(timestamp '2000-01-01' + ({0}) * interval '1 day')",
        "extract(day from {0} - timestamp '2000-01-01')::bigint",
        "2000-01-0{1}T00:00:00",
    ),
    "uuid": KeyType.of(
        "lpad(({0})::text, 32, '0')::uuid", "right({0}::text, 9)::bigint", "00000000-0000-0000-0000-00000000000{0}"
    ),
    "bytea": KeyType.of("convert_to(({0})::text, 'UTF8')", "convert_from({0}, 'UTF8')::bigint", "\\x3{0}"),
}


def group_of(number: int) -> int:
    """The group, and so the scope, of a logical row."""
    return number % GROUPS


@dataclass
class Shape:
    """One table as the DDL actor has left it. Writers may be behind; what they then do is refused, or judged."""

    line: str
    name: str
    kind: Kind
    columns: list[str]
    """The key's columns, in the order in which they were made; `order` is that of the primary key."""
    order: list[int]
    type: str = "integer"
    group: str = "g"
    protected: bool = False
    rule: str = "strict"
    source: str = "external"
    scoped: bool = False
    partitions: dict[str, int] = field(default_factory=dict)
    """Name of each that is attached → which third of the numbers it holds."""
    version: int = 0
    """Odd while DDL that changes which row is meant by a name is under way; then a new one."""

    def lk(self, number: int) -> str:
        return f"{self.line}:{number}"

    def values(self, number: int) -> list[str]:
        """SQL of the key's values, in the order of `columns`."""
        if self.kind == "pair":
            return [str(number // 3), str(number % 3)]
        return [TYPES[self.type].make.format(number)]

    def texts(self, number: int) -> dict[str, str]:
        """The key's columns and their values as text."""
        if self.kind == "pair":
            return dict(zip(self.columns, [str(number // 3), str(number % 3)], strict=True))
        return {self.columns[0]: TYPES[self.type].texts[number]}

    def meant_by(self, number: int) -> frozenset[int]:
        """The rows that the key of this one names, for a writer that may be behind with the order of its columns."""
        return frozenset({number, number % 3 * 3 + number // 3} if self.kind == "pair" else {number})

    def key(self) -> list[str]:
        """The primary key's columns in its order."""
        return [self.columns[n] for n in self.order]

    def check(self) -> str:
        """SQL of the condition that keeps lk and key together."""
        if self.kind == "pair":
            number = f"{self.columns[0]} * 3 + {self.columns[1]}"
        else:
            number = TYPES[self.type].read.format(self.columns[0])
        return f"lk = '{self.line}:' || ({number})"


@dataclass
class Operation:
    """One attempt at writing, and its answer."""

    id: str
    what: str
    token: int | None
    line: str
    numbers: frozenset[int]
    """Which rows it may concern."""
    outcome: Outcome = "open"
    rows: frozenset[str] | None = None
    """The rows that its answer names; None: one row, which the answer does not name."""
    answer: str = ""
    named: bool = True
    """Whether its id is in the log: a row that it wrote has it, or its transaction."""
    behind: bool = False
    """Whether the name of the table may have come to mean another line's while the request was under way."""

    def may_concern(self, lk: str) -> bool:
        """Whether the operation may have written this row."""
        if self.outcome == "done" and self.rows is not None and lk not in self.rows:
            return False
        line, _, number = lk.partition(":")
        return (self.behind or line == self.line) and int(number) in self.numbers


class World:
    """Shared by writers, the DDL actor, and (when all is over) the oracle."""

    def __init__(self, dsn: str, seed: int, operations: int) -> None:
        self.dsn, self.seed, self.target = dsn, seed, operations
        self.shapes: list[Shape] = []
        self.operations: dict[str, Operation] = {}
        self.answers: Counter[str] = Counter()
        self.ddl: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What broke a promise at once."""
        self.complaints: list[str] = []
        """Errors that are none of those that are expected."""
        self.epoch = 0
        """Which database it is: two more after each restore, and odd while one takes the other's place."""
        self.top = 100
        """The highest token that was seen."""
        self.slept: dict[str, deque[int]] = {"builtin": deque(maxlen=150), "external": deque(maxlen=150)}
        """Tokens whose holders are paused, and come back later."""
        self.finished = 0
        self._since = 0
        self._acts: asyncio.Event = asyncio.Event()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count(1)

    @property
    def running(self) -> bool:
        return self.finished < self.target

    def dice(self, *name: object) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def line(self) -> str:
        return f"t{next(self._numbers)}"

    def begin(self, what: str, token: int | None, shape: Shape, numbers: frozenset[int]) -> Operation:
        """Write an operation down before it is tried."""
        operation = Operation(f"o{next(self._numbers)}", what, token, shape.line, numbers)
        self.operations[operation.id] = operation
        return operation

    def finish(
        self, operation: Operation, outcome: Outcome, answer: str, rows: frozenset[str] | None = frozenset()
    ) -> None:
        """Write down what became of it."""
        operation.outcome, operation.answer, operation.rows = outcome, answer, rows
        self.answers[f"{operation.what} {answer}"] += 1
        self.count()

    def count(self) -> None:
        self.finished += 1
        while self._waiting and (self._waiting[0][0] <= self.finished or not self.running):
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    async def after(self, operations: int, within: float = 5.0) -> None:
        """Return once so many more operations have ended, the storm is over, or `within` seconds are."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.finished + operations, next(self._numbers), future))
        if self.running:
            await asyncio.wait([future], timeout=within)

    def act(self) -> None:
        """The DDL actor begins its next change."""
        self._since = self.finished
        self._acts.set()
        self._acts = asyncio.Event()

    async def turn(self) -> None:
        """Writers wait here for the DDL actor, now and then: it shall not be left behind."""
        if self.finished - self._since > AHEAD:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._acts.wait(), 0.3)

    # Tokens

    def fresh(self) -> int:
        """A token above all that was seen, of a lock service that is not Fencepost's."""
        self.top += random.Random(f"{self.seed} {self.top}").randrange(1, 4)
        self.slept["external"].append(self.top)
        return self.top

    def met(self, token: int) -> None:
        """A lease has given this one."""
        self.top = max(self.top, token)
        self.slept["builtin"].append(token)
        self.slept["external"].append(token)


# The writers' answers, against what was done: a success once, a refusal not at all, the rest at most once.


def compare(
    operations: Iterable[Operation], applied: Mapping[str, Mapping[str, int]], bare: Mapping[str, int]
) -> list[str]:
    """List what is not true. `applied`: operation → how often it wrote each row; `bare`: how often each row was deleted
    by operations that did not record their name.
    """
    wrong: list[str] = []
    nameless: list[Operation] = []
    for operation in operations:
        done = applied.get(operation.id, {})
        if not operation.named:
            nameless.append(operation)
        elif operation.what not in ("claim", "lease", APART):
            wrong += [f"{operation}: {what}: {dict(done)}" for what in _amiss(operation, done)]
    return wrong + _amiss_together(nameless, bare)


def _amiss(operation: Operation, done: Mapping[str, int]) -> Iterable[str]:
    if any(times > 1 for times in done.values()):
        yield "it was done more than once"
    if operation.outcome == "refused" and done:
        yield "it was refused, and done"
    if operation.outcome == "done":
        if operation.rows is not None and operation.rows != set(done):
            yield "the rows that were written are not those of the answer"
        if operation.rows is None and len(done) != 1:
            yield f"the answer was about one row, and {len(done)} were written"


def _amiss_together(nameless: Iterable[Operation], bare: Mapping[str, int]) -> list[str]:
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for operation in nameless:
        everything = {f"{operation.line}:{number}" for number in operation.numbers}
        if operation.outcome in ("done", "maybe"):
            most.update(lk for lk in everything | bare.keys() if operation.may_concern(lk))
        if operation.outcome == "done":
            least.update(operation.rows or (everything if len(everything) == 1 and not operation.behind else ()))
    deleted: defaultdict[str, int] = defaultdict(int, bare)
    return [
        f"{lk} was deleted {deleted[lk]} times by HTTP without a key, and answered were {least[lk]} to {most[lk]}"
        for lk in sorted(most.keys() | deleted.keys())
        if not least[lk] <= deleted[lk] <= most[lk]
    ]


# What PostgreSQL committed, in the order of its commits: a logical replication slot, read through SQL.
#
# pgoutput is part of every PostgreSQL; its messages (protocol version 1) are parsed here, with nothing of the
# product's.

SLOT: Final = "(SELECT 'storm_' || oid FROM pg_database WHERE datname = current_database())"
"""SQL: a slot belongs to one database, and its name to all."""
PUBLICATION: Final = "storm"

Row = dict[str, str | None]


@dataclass(frozen=True)
class Change:
    """One row's change. `old` has all columns: the storm's tables have REPLICA IDENTITY FULL."""

    schema: str
    table: str
    old: Row | None
    new: Row | None


@dataclass(frozen=True)
class Message:
    """What pg_logical_emit_message wrote."""

    prefix: str
    content: str


@dataclass
class Transaction:
    """A committed transaction; or, with xid 0, one message that belongs to none."""

    xid: int
    entries: list[Change | Message] = field(default_factory=list)


@dataclass(frozen=True)
class _Relation:
    schema: str
    name: str
    columns: tuple[str, ...]


class _Reader:
    """Takes a message apart from left to right."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def bytes(self, length: int) -> bytes:
        self._at += length
        return self._data[self._at - length : self._at]

    def more(self) -> bool:
        return self._at < len(self._data)

    def letter(self) -> str:
        return self.bytes(1).decode()

    def string(self) -> str:
        end = self._data.index(0, self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def row(self, columns: tuple[str, ...]) -> Row:
        count = self.take("h")
        assert count == len(columns), (count, columns)
        return {column: self._value() for column in columns}

    def _value(self) -> str | None:
        kind = self.letter()
        if kind == "n":
            return None
        assert kind == "t", f"a value of the kind {kind}: the storm's values are short, and sent as text"
        return self.bytes(self.take("i")).decode()


class Decoder:
    """Puts the messages of a slot together to transactions."""

    def __init__(self) -> None:
        self._relations: dict[int, _Relation] = {}
        self._open: Transaction | None = None

    def feed(self, data: bytes) -> Iterator[Transaction]:
        """Read one message; gives what is complete with it."""
        reader = _Reader(data)
        kind = reader.letter()
        match kind:
            case "B":
                reader.take("q"), reader.take("q")
                self._open = Transaction(reader.take("I"))
            case "C":
                assert self._open is not None
                done, self._open = self._open, None
                if done.entries:
                    yield done
            case "R":
                self._relate(reader)
            case "I" | "U" | "D":
                assert self._open is not None
                self._open.entries.append(self._change(reader))
            case "M":
                belongs = bool(reader.take("B") & 1)
                reader.take("q")
                message = Message(reader.string(), reader.bytes(reader.take("i")).decode())
                if belongs:
                    assert self._open is not None
                    self._open.entries.append(message)
                else:
                    yield Transaction(0, [message])
            case _:  # types, origins, TRUNCATE: of no account
                return

    def _relate(self, reader: _Reader) -> None:
        number, schema, name = reader.take("I"), reader.string(), reader.string()
        reader.take("b")
        columns = []
        for _ in range(reader.take("h")):
            reader.take("b")
            columns.append(reader.string())
            reader.take("I"), reader.take("i")
        self._relations[number] = _Relation(schema, name, tuple(columns))

    def _change(self, reader: _Reader) -> Change:
        relation = self._relations[reader.take("I")]
        rows: dict[str, Row] = {}
        while reader.more():
            which = "new" if reader.letter() == "N" else "old"
            rows[which] = reader.row(relation.columns)
        return Change(relation.schema, relation.name, rows.get("old"), rows.get("new"))


async def begin(connection: Connection) -> None:
    """Make the slot: everything that is committed from here on is read."""
    await connection.execute(f"SELECT pg_create_logical_replication_slot({SLOT}, 'pgoutput')")


async def drain(connection: Connection, decoder: Decoder) -> list[Transaction]:
    """Read what has been committed since the last time."""
    read: list[Transaction] = []
    while True:
        rows = await connection.fetch(
            f"SELECT data FROM pg_logical_slot_get_binary_changes({SLOT}, NULL, 20000, 'proto_version', '1',"
            " 'publication_names', $1, 'messages', 'true')",
            PUBLICATION,
        )
        if not rows:
            return read
        for row in rows:
            read += decoder.feed(row["data"])


async def end(connection: Connection) -> None:
    """Drop the slot, which would keep the WAL for ever."""
    await connection.execute(f"SELECT pg_drop_replication_slot({SLOT})")
