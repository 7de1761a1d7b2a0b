"""The routes of one table, as OpenAPI path items."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from fencepost.server.http.openapi.answers import errors
from fencepost.server.http.openapi.examples import example_changes, example_insert, example_named_changes, example_row
from fencepost.server.http.openapi.headers import headers
from fencepost.server.http.openapi.parameters import columns, filters, key_parameters, paging, select
from fencepost.server.http.openapi.preferences import prefer
from fencepost.server.http.openapi.shared_parameters import PARAMETERS, parameter
from fencepost.server.http.requests.preferences import Route
from fencepost.server.postgres.tables import Table

Part = dict[str, Any]

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
        self.read = headers(*single)
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
            [*self.keys, select(self.table), prefer("row"), parameter("RequestId")],
            {"200": self._row("The row.", self.read), **errors([*_READ, "NoRow"])},
        )

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
            [*self.keys, *self._write("patch")],
            self._now_or_later(
                {
                    "200": self._row("The row after the change.", self.single),
                    "204": {"description": "Done, with `Prefer: return=minimal`."} | self.single,
                },
                [*_WRITE, "NoRow", "Refused"],
            ),
            body={"schema": self._schema("update"), "example": example_changes(self.table)},
        )

    def _put(self) -> Part:
        return self._operation(
            f"put_{self.names.operation}_row",
            f"Create or replace one row of {self.table.name}",
            "Columns that the body leaves out get their defaults. A key in the body must be the path's.",
            [*self.keys, *self._write("put")],
            self._now_or_later(
                {
                    "200": self._row("Replaced: the row.", self.single),
                    "201": self._row("Created: the row.", self.single),
                    "204": {"description": "Replaced, with `Prefer: return=minimal`."} | self.single,
                },
                [*_WRITE, "NoTable", "Refused"],
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
            [*self.keys, *self._write("delete")],
            self._now_or_later(
                {
                    "200": self._row("`Prefer: return=representation`: the row that was deleted.", self.single),
                    "204": {"description": "Deleted."} | self.single,
                },
                [*_DELETE, "NoRow", "Refused"],
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
