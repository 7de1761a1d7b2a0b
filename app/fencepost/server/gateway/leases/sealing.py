"""What the tokens of a lease are sealed for: the resources that its locks are named after, that it claims, and that the
request for it listed in `writes`.

A resource has one name, in which PostgreSQL renders it: 07 and 7 are one key of an integer. Claims are bound by that
name, however they were written; and so is what stands in `writes`, which is kept with the lease in that form. A lock's
name is bound as it is, and as it is spelled where no more characters are encoded than must be. What it means as values
of a key is not asked: the lock orders/07 is not for the row orders/7, whose lock another client may have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import UNKNOWN_TABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_key, decode_segment, parse_resource
from fencepost.server.fence.seal import Binding
from fencepost.server.gateway.claims.resources import claimable
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.preconditions import require_protected
from fencepost.server.gateway.writes.naming import name_of_key
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import Catalog, ProtectedTable

MOST_BYTES: Final = 1024
"""Of the names of `writes` of one lease."""
ANY: Final = "*"
"""At the end of an entry of `writes`: all resources whose names begin so."""


async def names_of_writes(gateway: Gateway, writes: Sequence[str]) -> tuple[str, ...] | Problem:
    """Read `writes` of a request for a lease, and give each as it is kept. Raises StorageError, QueryError."""
    if writes and gateway.seals.keys is None:
        return bad_request(
            "body: writes: this gateway seals no tokens, and so they can be used for any resource",
            "An operator gives it keys: FENCEPOST_SEAL_KEYS_FILE. Until then, leave writes out.",
        )
    kept: set[str] = set()
    for text in writes:
        name = await (_prefix if text.endswith(ANY) else _resource)(gateway, text)
        if isinstance(name, Problem):
            return name
        kept.add(name)
    if sum(len(name.encode()) for name in kept) > MOST_BYTES:  # 1e100000 is a short text, and a long name
        return bad_request(f"body: writes: the names have more than {MOST_BYTES} bytes as the database spells them")
    return tuple(sorted(kept, key=str.encode))


async def binding_of(
    gateway: Gateway, source: str, locks: Sequence[str], claims: Sequence[str], writes: Sequence[str], lease: str = ""
) -> Binding:
    """Give what the tokens of a lease are bound to. `lease` is empty before it is granted. Raises StorageError."""
    names = {*locks, *map(_spelled, locks), *(each for each in writes if not each.endswith(ANY))}
    for claim in claims:
        names.add(await _name_of_claim(gateway, claim))
    prefixes = tuple(each.removesuffix(ANY) for each in writes if each.endswith(ANY))
    return Binding(source, lease, frozenset(names), prefixes)


def _spelled(lock: str) -> str:
    """Spell a lock's name as names of resources are: clients may encode more characters than need be."""
    try:
        resource = parse_resource(lock)
    except MalformedResourceError:
        return lock
    return f"{encode_name(resource.table)}/{_encoded(resource.key)}"


def _encoded(key: Sequence[str]) -> str:
    return ",".join(encode_name(value) for value in key)


async def _prefix(gateway: Gateway, text: str) -> str | Problem:
    """Read `table/*` or `table/start*`."""
    table, slash, start = text.removesuffix(ANY).partition("/")
    if not slash or not table:
        return bad_request(
            f"body: writes: {text}: a table (or a scope) and a slash stand before the {ANY}: orders/{ANY}"
        )
    try:
        found = _table_of(gateway.catalog.current, decode_segment(table.encode()), text)
        begin = _encoded(decode_key(start.encode()))
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    return found if isinstance(found, Problem) else f"{encode_name(found.prefix)}/{begin}{ANY}"


async def _resource(gateway: Gateway, text: str) -> str | Problem:
    try:
        resource = parse_resource(text)
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return found
    try:
        return await _name(gateway, found.table, resource)
    except QueryError as error:
        return bad_request(f"body: writes: {text}: {error}")


@dataclass(frozen=True, slots=True)
class _Found:
    """A protected table, and what stands before the slash in the names of its resources."""

    table: ProtectedTable
    prefix: str


def _table_of(catalog: Catalog, name: str, text: str) -> _Found | Problem:
    found = catalog.find_or_scope(name)
    if found is None:
        return Problem(UNKNOWN_TABLE, f"body: writes: {text}: there is no table {name}.")
    table = require_protected(found)
    if isinstance(table, Problem):
        return table
    scope = table.fence.scope
    if scope is None:
        return _Found(table, table.fence.name)
    if scope.prefix == name:
        return _Found(table, name)
    return bad_request(
        f"body: writes: {text}: rows of {table.name} are fenced by their scope: name it instead, {scope.template}",
        f'"writes": ["{encode_name(scope.prefix)}/{ANY}"]',
    )


async def _name_of_claim(gateway: Gateway, text: str) -> str:
    """Give the one name of a claim; as it is, where it names nothing (any more)."""
    resource = parse_resource(text)
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return text
    try:
        name = await _name(gateway, found.table, resource)
    except QueryError:
        return text
    return text if isinstance(name, Problem) else name


async def _name(gateway: Gateway, table: ProtectedTable, resource: Resource) -> str | Problem:
    """Give the one name of a row, or of a scope. Raises QueryError, StorageError."""
    scope = claimable(table, resource)
    if isinstance(scope, Problem):
        return scope
    if scope is None:
        return await name_of_key(gateway, table, resource.key)
    async with gateway.connection(table) as connection:
        with map_errors(writing=False):
            return (await scopes_typed(connection, table, scope, [resource.key]))[0]
