"""Which text of a value is the canonical one, as far as that is known without PostgreSQL: 7 and 07 are one row."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.server.postgres.tables.catalog import Table

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _integer_of(bits: int) -> Callable[[str], bool]:
    most = 2 ** (bits - 1)
    return lambda text: _INTEGER.fullmatch(text) is not None and -most <= int(text) < most


def _any_text(_: str) -> bool:
    return True


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


_CANONICAL: Final[dict[str, Callable[[str], bool]]] = {
    "text": _any_text,
    "varchar": _any_text,
    "int2": _integer_of(16),
    "int4": _integer_of(32),
    "int8": _integer_of(64),
    "uuid": _is_uuid,
}
"""By a key column's type: whether a text is canonical for certain."""


def is_canonical(table: Table, key: Sequence[str], columns: Sequence[str] | None = None) -> bool:
    """Whether the texts of a key are certainly the canonical ones of values of its columns. There are as many.
    `columns`: others than those of the key.
    """
    for column, value in zip(table.key if columns is None else columns, key, strict=True):
        canonical = _CANONICAL.get(table.columns[column].base_name)
        if canonical is None or not canonical(value):
            return False
    return True
