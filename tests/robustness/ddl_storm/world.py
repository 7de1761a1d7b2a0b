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
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, Literal

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
        "lpad(({0})::text, 32, '0')::uuid",
        "right({0}::text, 9)::bigint",
        "00000000-0000-0000-0000-00000000000{0}",
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
        """Name a new line of tables."""
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
