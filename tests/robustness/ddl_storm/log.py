"""What PostgreSQL committed, in the order of its commits: a logical replication slot, read through SQL.

pgoutput is part of every PostgreSQL; its messages (protocol version 1) are parsed here, with nothing of the product's.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.interleave import Connection

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
