"""OpenAPI 3.1 made from the real tables, merged with what FastAPI generated for the system routes.

Nothing here is written by hand per table: names, comments, types, nullability, enums and defaults are the
catalog's, so the document cannot be out of step with the database by more than one reload.
"""

import copy
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from pydantic import TypeAdapter

from fencepost.server.http.answers import WriteAnswer
from fencepost.server.http.edge import Needs
from fencepost.server.http.headers import Route
from fencepost.server.http.openapi_answers import (
    ERRORS,
    HEADERS,
    LINE_SCHEMAS,
    PROBLEM,
    QUEUED,
    batch_path,
    errors,
    headers,
)
from fencepost.server.http.openapi_parts import (
    PARAMETERS,
    PREFER,
    column_schema,
    columns,
    example_changes,
    example_insert,
    example_named_changes,
    example_row,
    filters,
    is_required,
    key_parameters,
    paging,
    parameter,
    prefer,
    select,
    writable,
)
from fencepost.server.postgres.tables import Catalog, Table

# What authentication adds to the OpenAPI document: how a request says who sends it, and the answers if it does not.

Part = dict[str, Any]

SCHEMES: Final[Part] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A JSON Web Token, or an API key: `Authorization: Bearer …`.",
    }
}


def before(version: str) -> Part:
    """Give the document that /docs shows to callers that are not known, who may not see the one with the tables."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fencepost",
            "version": version,
            "description": "Tables and routes are shown to known callers: *Authorize* takes a JWT or an API key, and "
            "forgets it when this page is closed or loaded again.",
        },
        "paths": {},
        "components": {"securitySchemes": SCHEMES},
    }


def secure(document: Part, needs: Callable[[str, str], Needs]) -> None:
    """Add to a document of a gateway that has authentication. `needs`: by method and path."""
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{"token": []}]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            needed = needs(method.upper(), path)
            if needed == "nothing":
                operation["security"] = []
                continue
            if needed == "more for callers":
                operation["security"] = [{}, {"token": []}]
            answers = operation["responses"]
            answers.setdefault("401", {"$ref": "#/components/responses/Unauthenticated"})
            answers.setdefault("429", {"$ref": "#/components/responses/TooManyRequests"})
            answers.setdefault("503", {"$ref": "#/components/responses/Unverified"})
            if needed in ("read", "write", "lock"):
                answers.setdefault("403", {"$ref": "#/components/responses/OutOfScope"})


# The routes of one table, as OpenAPI path items.

_READ: Final = ("BadRequest", "Denied", "NotAcceptable", "Unavailable")
_DELETE: Final = ("BadRequest", "Forbidden", "TooLarge", "KeyReused", "TokenRequired", "Unavailable")
_WRITE: Final = (*_DELETE, "NotJson")
_OF_LOCKS: Final = frozenset({"KeyReused", "TokenRequired", "NoRow", "Refused"})
"""Errors that a write which is queued has later, if at all."""
_QUEUED: Final[Part] = {"202": {"$ref": "#/components/responses/Queued"}, **errors(["QueueFailed"])}


@dataclass(frozen=True, slots=True)
class TableNames:
    """What a table is called in the document: `component` for its schemas, `operation` for operationIds."""

    component: str
    operation: str


def table_paths(table: Table, names: TableNames) -> dict[str, Part]:
    """Describe all routes of a table. Writes need a fence, single rows a primary key."""
    routes = _Routes(table, names)
    base = f"/v1/data/{quote(table.name, safe='')}"
    paths = {base: routes.collection()}
    if table.key:
        # One parameter per key column, joined by literal commas: clients percent-encode each value by itself.
        template = ",".join(f"{{{key['name']}}}" for key in routes.keys)
        paths[f"{base}/{template}"] = routes.row()
    return paths


class _Routes:
    """Builds the operations of one table."""

    def __init__(self, table: Table, names: TableNames) -> None:
        self.table = table
        self.names = names
        self.fence = table.fence
        self.scope = table.fence.scope if table.fence else None
        single = ("X-Fence-Mark", "X-Request-Id") if self.fence else ("X-Request-Id",)
        written = ("Idempotent-Replayed", "X-Request-Id")
        self.versioned = self.fence is not None and self.fence.has_versions
        conditional = self.versioned and self.fence is not None and self.fence.queue is None
        self.condition = [parameter("IfMatch")] if conditional else []
        self.changed = ("RowChanged",) if conditional else ()
        self.read = headers(*(("ETag",) if self.versioned else ()), *single)
        self.listed = headers("Content-Range", "X-Request-Id")
        marked = ("X-Fence-Mark", "X-Fence-Scope") if self.scope else ("X-Fence-Mark",)
        self.single = headers(*marked, *written)
        self.many = headers("Content-Range", *written)
        self.created = headers("Location", *(marked if self.scope else ()), *written)
        self.keys = key_parameters(table)
        once = parameter("IdempotencyKey")
        if self.fence and self.fence.requires_key:
            once = {**PARAMETERS["IdempotencyKey"], "required": True}
        # Parameters stand with each operation: at the path, Swagger UI does not follow references.
        self.queue = self.fence.queue if self.fence else None
        token = [parameter("FenceToken")] if self.queue is None else []
        self.before = [*token, once, select(table, writing=True)]

    def collection(self) -> Part:
        """Describe /v1/data/{table}."""
        item: Part = {"get": self._list()}
        if self.fence:
            item |= {"post": self._insert()}
        if self.fence and self.queue is None:
            item |= {"patch": self._update_where(), "delete": self._delete_where()}
        return item

    def row(self) -> Part:
        """Describe /v1/data/{table}/{key}."""
        item: Part = {"get": self._read()}
        if self.fence:
            item |= {"patch": self._update(), "put": self._put(), "delete": self._delete()}
        return item

    def _list(self) -> Part:
        return self._operation(
            f"list_{self.names.operation}",
            f"Rows of {self.table.name}",
            "Rows that match every filter, in PostgREST's dialect. A token is not looked at." + self._how_to_write(),
            [
                select(self.table),
                *filters(self.table),
                *paging(self.table),
                prefer("list"),
                parameter("RequestId"),
            ],
            {
                "200": self._rows("The rows.", self.listed),
                "206": self._rows("Some of the rows, with `Prefer: count=exact` and more that match.", self.listed),
                **errors([*_READ, "NoTable"]),
            },
        )

    def _read(self) -> Part:
        return self._operation(
            f"read_{self.names.operation}_row",
            f"One row of {self.table.name}",
            "One row by its primary key. A token is not looked at." + self._how_to_write(),
            [*self.keys, select(self.table), prefer("row"), *self._if_none_match(), parameter("RequestId")],
            {"200": self._row("The row.", self.read), **self._not_modified(), **errors([*_READ, "NoRow"])},
        )

    def _if_none_match(self) -> list[Part]:
        return [parameter("IfNoneMatch")] if self.versioned else []

    def _not_modified(self) -> Part:
        return {"304": {"description": "The client has the row as it is."} | self.read} if self.versioned else {}

    def _insert(self) -> Part:
        one = self._schema("insert")
        body = {"anyOf": [one, {"type": "array", "items": one}]}
        example = example_insert(self.table)
        examples = {
            "object": {"summary": "One row", "value": example},
            "array": {"summary": "Several rows, all or nothing", "value": [example]},
        }
        return self._operation(
            f"insert_{self.names.operation}",
            f"Insert into {self.table.name}",
            "One object, or an array of them, all or nothing. A key that a newer token has written, claimed "
            "or deleted is refused like any stale write." + self._scopes(),
            [*self._write("post"), columns()],
            self._now_or_later(
                {
                    "201": self._rows(
                        "The rows as they were written; empty with `Prefer: return=minimal`.", self.created
                    )
                },
                [*_WRITE, "NoTable", "Refused"],
            ),
            body={"schema": body, "examples": examples},
        )

    def _scopes(self) -> str:
        if self.scope is None:
            return ""
        return (
            f" The rows share marks: {self.scope.template} is what the token must be newer for. Every object gives"
            f" {', '.join(self.scope.columns)} a value; `X-Fence-Scope` names the scope of a single row."
        )

    def _update_where(self) -> Part:
        return self._operation(
            f"update_{self.names.operation}_where",
            f"Change the rows that match, or that are named ({self.table.name})",
            "One object and at least one filter: the rows that match. Or an array and no filter: each object names its "
            "row by the key's columns, and changes the others; a key without a row is 404, and nothing is written. "
            "One token for all of them, all or nothing: one row that a newer token has written refuses the request.",
            [*filters(self.table, prefill=True), *self._write("patch-rows"), columns()],
            {
                "200": self._rows("`Prefer: return=representation`: the rows after the change.", self.many),
                "204": {"description": "Done, or no row matched."} | self.many,
                **errors([*_WRITE, "NoRow", "RefusedRows"]),
            },
            body={
                "schema": {"anyOf": [self._schema("update"), {"type": "array", "items": self._schema("named_update")}]},
                "examples": {
                    "object": {
                        "summary": "One change of all rows that match the filters",
                        "value": example_changes(self.table),
                    },
                    "array": {
                        "summary": "A change for each row that is named; without filters",
                        "value": [example_named_changes(self.table)],
                    },
                },
            },
        )

    def _delete_where(self) -> Part:
        return self._operation(
            f"delete_{self.names.operation}_where",
            f"Delete the rows that match ({self.table.name})",
            "Needs at least one filter. One token for all matching rows, all or nothing. Their marks outlive them.",
            [*filters(self.table, prefill=True), *self._write("delete-rows")],
            {
                "200": self._rows("`Prefer: return=representation`: the rows that were deleted.", self.many),
                "204": {"description": "Done, or no row matched."} | self.many,
                **errors([*_DELETE, "NoTable", "RefusedRows"]),
            },
        )

    def _update(self) -> Part:
        return self._operation(
            f"update_{self.names.operation}_row",
            f"Change one row of {self.table.name}",
            "Changes the columns in the body, if the token is new enough. The primary key cannot change.",
            [*self.keys, *self.condition, *self._write("patch")],
            self._now_or_later(
                {
                    "200": self._row("The row after the change.", self.single),
                    "204": {"description": "Done, with `Prefer: return=minimal`."} | self.single,
                },
                [*_WRITE, "NoRow", "Refused", *self.changed],
            ),
            body={"schema": self._schema("update"), "example": example_changes(self.table)},
        )

    def _put(self) -> Part:
        return self._operation(
            f"put_{self.names.operation}_row",
            f"Create or replace one row of {self.table.name}",
            "Columns that the body leaves out get their defaults. A key in the body must be the path's.",
            [*self.keys, *self.condition, *self._write("put")],
            self._now_or_later(
                {
                    "200": self._row("Replaced: the row.", self.single),
                    "201": self._row("Created: the row.", self.single),
                    "204": {"description": "Replaced, with `Prefer: return=minimal`."} | self.single,
                },
                [*_WRITE, "NoTable", "Refused", *self.changed],
            ),
            body={
                "schema": self._schema("replace"),
                "example": {
                    name: value for name, value in example_insert(self.table).items() if name not in self.table.key
                },
            },
        )

    def _delete(self) -> Part:
        return self._operation(
            f"delete_{self.names.operation}_row",
            f"Delete one row of {self.table.name}",
            "The row goes, its mark stays: a paused holder cannot create it again.",
            [*self.keys, *self.condition, *self._write("delete")],
            self._now_or_later(
                {
                    "200": self._row("`Prefer: return=representation`: the row that was deleted.", self.single),
                    "204": {"description": "Deleted."} | self.single,
                },
                [*_DELETE, "NoRow", "Refused", *self.changed],
            ),
        )

    def _write(self, route: Route) -> list[Part]:
        """List the parameters of all writes, with what this one may prefer."""
        return [*self.before, prefer(route), parameter("RequestId")]

    def _now_or_later(self, done: Part, refused: Iterable[str]) -> Part:
        """Give the answers of a write of one row: what was done, or that it is queued; the latter only, where the
        table has a queue.
        """
        if self.queue is None:
            return {**done, **_QUEUED, **errors(refused)}
        names = [name for name in refused if name not in _OF_LOCKS]
        return {**_QUEUED, **errors([*dict.fromkeys([*names, "NoTable"])])}

    def _operation(
        self,
        name: str,
        summary: str,
        description: str,
        parameters: Iterable[Part],
        responses: Part,
        *,
        body: Part | None = None,
    ) -> Part:
        operation: Part = {
            "tags": [self.table.name],
            "operationId": name,
            "summary": summary,
            "description": description,
            "parameters": list(parameters),
            "responses": dict(sorted(responses.items())),
        }
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": body}}
        return operation

    def _row(self, description: str, extra: Part) -> Part:
        content = {"schema": self._schema(), "example": example_row(self.table)}
        return {"description": description, "content": {"application/json": content}} | extra

    def _rows(self, description: str, extra: Part) -> Part:
        content = {"schema": {"type": "array", "items": self._schema()}, "example": [example_row(self.table)]}
        return {"description": description, "content": {"application/json": content}} | extra

    def _schema(self, variant: str | None = None) -> Part:
        name = self.names.component if variant is None else f"{self.names.component}.{variant}"
        return {"$ref": f"#/components/schemas/{name}"}

    def _how_to_write(self) -> str:
        if self.fence:
            return ""
        if self.table.kind in ("table", "partitioned table"):
            return f" Not protected, so read only here: `fencepost protect {self.table.name}` adds the writes."
        return f" A {self.table.kind} is read only."


# The whole document, and the schemas of tables.

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
    catalog: Catalog, system: dict[str, Any], *, version: str, needs: Callable[[str, str], Needs] | None = None
) -> dict[str, Any]:
    """Build the document. `system` is FastAPI's schema of the other routes; it is not changed. `needs`: what callers
    must be allowed to do; None: the gateway has no authentication.
    """
    document = copy.deepcopy(system)
    components: Part = document.setdefault("components", {})
    schemas: Part = components.setdefault("schemas", {})
    schemas |= {"Problem": PROBLEM, **LINE_SCHEMAS}
    schemas.setdefault("WriteAnswer", _schema_of(WriteAnswer, schemas))
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
        "paths": paths | batch_path() | document.get("paths", {}),
    }
    if needs is not None:
        secure(built, needs)
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
