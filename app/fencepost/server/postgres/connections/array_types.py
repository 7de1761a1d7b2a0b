"""Arrays of PostgreSQL's own types, which asyncpg does not know by itself.

It would ask the catalog for each of them once a connection: three round trips, and a statement of its own, whose
operators others may have put on the search_path of the session's role. Their numbers are the same in every PostgreSQL
(src/include/catalog/pg_type.dat), so nothing has to be asked.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncpg

_NUMBERS: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "uuid": (2951, 2950),
}
"""A type's name → the array's number, and its own."""
_UNUSED: Final = dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
_ARRAYS: Final = [
    {"oid": array, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": ","}
    | _UNUSED
    for name, (array, element) in _NUMBERS.items()
]


def know_arrays(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Let a new connection know them: as asyncpg does with what the catalog answers."""
    protocol = connection._protocol  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way
    protocol.get_settings().register_data_types(_ARRAYS)
