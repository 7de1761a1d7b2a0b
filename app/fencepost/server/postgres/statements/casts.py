"""Which types `select=column::type` may name: those of a list, and the types of the table's own columns.

The name of a type is SQL that a request spells itself, and a cast runs code of the type's. Some say what the gateway
does not serve (`regclass` and its like: names of the catalog), some fail in ways of their own (`unknown`,
pseudo-types), some pad a value to any length (`char(9999)`).
"""

import re
from typing import Final

from fencepost.server.postgres.statements.query import CAST_TYPE, QueryError
from fencepost.server.postgres.tables.catalog import Table

MOST_LENGTH: Final = 255
"""The largest number in brackets after a type: char(255), numeric(255,10)."""
_NAMES: Final = frozenset(
    {
        *("text", "varchar", "character varying", "char", "character", "bpchar", "bytea", "uuid", "json", "jsonb"),
        *("smallint", "integer", "int", "bigint", "int2", "int4", "int8", "numeric", "decimal"),
        *("real", "double precision", "float", "float4", "float8", "boolean", "bool"),
        *("date", "interval", "time", "timetz", "timestamp", "timestamptz"),
        *("time with time zone", "time without time zone", "timestamp with time zone", "timestamp without time zone"),
        *("inet", "cidr", "macaddr", "macaddr8", "bit", "bit varying", "varbit", "money"),
    }
)
_BOUNDED: Final = _NAMES - {"jsonb"}
"""Types of which a value is at most one number."""
_MODIFIER: Final = re.compile(r"\(([0-9, ]+)\)")


def cast_type(table: Table, given: str) -> str:
    """Give the SQL of a type that a value may be cast to. Raises QueryError."""
    if not CAST_TYPE.fullmatch(given):
        raise QueryError(f"select: {given!r} is no type's name")
    modifier, name = _MODIFIER.search(given), _name(given)
    if modifier and any(int(number) > MOST_LENGTH for number in modifier[1].split(",")):
        raise QueryError(f"select: ::{given}: the numbers in brackets are {MOST_LENGTH} at most")
    if name in _NAMES:
        return given
    for column in table.columns.values():
        for of_table in (column.type, column.base_type):
            own = of_table.removesuffix("[]")
            if not modifier and name in (own.lower(), own.lower().rpartition(".")[2]):
                return f"{own}[]" if given.endswith("[]") else own
    raise QueryError(
        f"select: nothing can be cast to {given} here: to text, numbers, times, json and their like, and to the types"
        f" of the columns of {table.name}"
    )


def may_expand(given: str) -> bool:
    """Whether a short text that is cast to this type may become a long one, because the type may have any number of
    numbers: `[1e131071,1e131071]` has 262,144 digits as a jsonb.
    """
    return given.endswith("[]") or _name(given) not in _BOUNDED


def _name(given: str) -> str:
    name = _MODIFIER.sub("", given).removesuffix("[]").strip().lower().removeprefix("pg_catalog.")
    return " ".join(name.split())
