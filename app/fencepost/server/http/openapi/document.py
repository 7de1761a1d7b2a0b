"""OpenAPI 3.1 made from the real tables, merged with what FastAPI generated for the system routes.

Nothing here is written by hand per table: names, comments, types, nullability, enums and defaults are the
catalog's, so the document cannot be out of step with the database by more than one reload.
"""

import copy
import re
from typing import Any, Final

from pydantic import TypeAdapter

from fencepost.server import wire
from fencepost.server.http.openapi.answers import ERRORS, PROBLEM, QUEUED
from fencepost.server.http.openapi.batch import LINE_SCHEMAS, batch_path
from fencepost.server.http.openapi.examples import example_changes, example_insert, example_named_changes, example_row
from fencepost.server.http.openapi.headers import HEADERS
from fencepost.server.http.openapi.paths import TableNames, table_paths
from fencepost.server.http.openapi.preferences import PREFER, with_prefer
from fencepost.server.http.openapi.secured import secure
from fencepost.server.http.openapi.shared_parameters import PARAMETERS
from fencepost.server.http.openapi.types import column_schema, is_required, writable
from fencepost.server.postgres.tables import Catalog, Table

Part = dict[str, Any]

_VARIANTS: Final = ("", ".insert", ".update", ".named_update", ".replace")

INTRODUCTION: Final = """\
Locks expire while their holders are paused; the paused holder wakes and writes over its successor's work.
Fencepost refuses that write.

**The token.** Your lock service hands out a number with each grant of a lock, and a later grant has a larger
one. Send it with every write as `X-Fence-Token`. The row remembers the newest token that it has accepted, its
*mark*, and a write with an older token gets a **409** and changes nothing. Do not retry it: a newer holder
holds the lock now.

**For example**, change a row with token 34, then send the same again. The first answer is 200. The second is 409,
[spent](problems/spent-token): under the rule *strict* each token writes a row once. With 33 it is
[stale](problems/stale-token), and 35 is welcome. On the demo's tables (`fencepost serve --demo`) this page sends such
writes, and `orders` opens with a token that it takes; `accounts` takes those of leases only. Elsewhere the page sends
reads only, for its forms are filled in with examples.

**Reading** takes PostgREST's dialect: `?status=eq.new&order=created_at.desc&limit=20`. A filter is
`operator.value` with `eq neq isdistinct gt gte lt lte like ilike in is`, and `not.` before it; `in.(a,b)`, `is.null`;
`*` is the wildcard of `like`. A read needs no token, and does not look at one that comes with it.

**Keys** in a path are the primary key's values in its column order, joined by `,`, each percent-encoded.
**Errors** are `application/problem+json`; [all of them](problems).
"""


def build_openapi(
    catalog: Catalog, system: dict[str, Any], *, version: str, authenticated: bool = False
) -> dict[str, Any]:
    """Build the document. `system` is FastAPI's schema of the other routes; it is not changed. `authenticated`: the
    gateway has authentication.
    """
    document = copy.deepcopy(system)
    components: Part = document.setdefault("components", {})
    schemas: Part = components.setdefault("schemas", {})
    schemas |= {"Problem": PROBLEM, **LINE_SCHEMAS}
    schemas.setdefault("WriteAnswer", _schema_of(wire.WriteAnswer, schemas))
    names = _allocate(catalog, taken=set(schemas))
    paths: Part = {}
    for table in catalog.shown:
        paths |= table_paths(table, names[table.name])
        schemas |= table_schemas(table, names[table.name].component)
    _merge(components, "responses", {name: answer for name, (_, answer) in ERRORS.items()} | {"Queued": QUEUED})
    _merge(components, "parameters", PARAMETERS | PREFER)
    _merge(components, "headers", HEADERS)
    tags = [{"name": table.name, "description": table_story(table)} for table in catalog.shown]
    system_tags = [tag for tag in document.get("tags", []) if tag["name"] not in catalog.tables]
    built = document | {
        "openapi": "3.1.0",
        "info": {"title": "Fencepost", "version": version, "description": INTRODUCTION},
        "tags": tags + system_tags,
        "paths": paths | batch_path() | with_prefer(document.get("paths", {})),
    }
    if authenticated:
        secure(built)
    return built


def table_story(table: Table) -> str:
    """Describe a table: its comment, and whether and how it is protected."""
    if table.fence is None:
        standing = (
            f"Not protected: read only here. `fencepost protect {table.name}` puts a fence on it."
            if table.kind in ("table", "partitioned table")
            else f"A {table.kind}: read only."
        )
    else:
        takes = "each token writes a row once" if table.fence.rule == "strict" else "a token may write a row again"
        standing = f"Protected, rule *{table.fence.rule}* ({takes}), tokens from *{table.fence.source}*."
        if table.fence.queue is not None:
            standing = f"Protected; all its writes go through the queue *{table.fence.queue}*, without a token."
        if not table.fence.intact:
            standing += " **Its fence is damaged and writes are refused**: run `fencepost protect` again."
    return "\n\n".join(filter(None, (table.comment, standing)))


def table_schemas(table: Table, component: str) -> Part:
    """Describe a table's row, and the bodies of an insert, an update and a replacement."""
    columns = {name: column_schema(table.columns[name]) for name in table.visible}
    about = {"description": table.comment} if table.comment else {}
    row = {"type": "object", "properties": columns, "example": example_row(table)} | about
    if table.fence is None:
        return {component: row}
    settable = {name: schema for name, schema in columns.items() if writable(table.columns[name])}
    free = {name: schema for name, schema in settable.items() if name not in table.key}
    changes = {name: {k: v for k, v in schema.items() if k != "default"} for name, schema in free.items()}
    # What names a row is always there, though the database may have made it.
    key = {name: {k: v for k, v in columns[name].items() if k not in ("default", "readOnly")} for name in table.key}
    needed = [name for name in settable if is_required(table.columns[name])]
    return {
        component: row,
        f"{component}.insert": _body(settable, needed, example_insert(table)),
        f"{component}.update": _body(changes, [], example_changes(table)),
        f"{component}.named_update": _body(key | changes, list(table.key), example_named_changes(table)),
        # A replacement may repeat the path's key.
        f"{component}.replace": _body(
            settable,
            [name for name in needed if name in free],
            {name: value for name, value in example_insert(table).items() if name in free},
        ),
    }


def _schema_of(kind: type, schemas: Part) -> Part:
    """Describe what the routes of tables answer with too; its parts become schemas of their own."""
    schema: Part = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    for name, part in schema.pop("$defs", {}).items():
        schemas.setdefault(name, part)
    return schema


def _body(properties: Part, needed: list[str], example: Part) -> Part:
    body: Part = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "example": example,
    }
    return body | ({"required": needed} if needed else {})


def _allocate(catalog: Catalog, taken: set[str]) -> dict[str, TableNames]:
    """Give every table names of its own: a component's may hold only letters, digits and `._-`.

    Table names are free text, so two may come out alike, and table `insert` of schema `orders` is spelled
    like the insert of table `orders`.
    """
    names: dict[str, TableNames] = {}
    operations: set[str] = set()
    for table in catalog.tables:
        component = _free(re.sub(r"[^A-Za-z0-9._-]", "_", table), taken, _VARIANTS)
        taken |= {component + variant for variant in _VARIANTS}
        operation = _free(re.sub(r"\W", "_", table), operations, ("",))
        operations.add(operation)
        names[table] = TableNames(component, operation)
    return names


def _free(wanted: str, taken: set[str], variants: tuple[str, ...]) -> str:
    candidate, number = wanted, 1
    while any(candidate + variant in taken for variant in variants):
        number += 1
        candidate = f"{wanted}_{number}"
    return candidate


def _merge(components: Part, kind: str, ours: Part) -> None:
    components[kind] = components.get(kind, {}) | ours
