"""Tables as the catalog gives them, made without a database."""

from typing import Literal

from fencepost.server.fence.token import Rule
from fencepost.server.postgres.tables import Column, Fence, Table, TableKind

SCALARS = (
    "bool", "int2", "int4", "int8", "numeric", "float4", "float8", "text", "varchar", "bpchar", "name", "uuid",
    "date", "time", "timetz", "timestamp", "timestamptz", "interval", "bytea", "json", "jsonb", "money", "inet",
    "cidr", "macaddr", "bit", "varbit", "point", "int4range", "tstzrange", "tsvector", "xml", "oid", "a_composite",
)  # fmt: skip


def column(  # noqa: PLR0913  a catalog's column has that many properties
    name: str,
    base_name: str = "text",
    *,
    nullable: bool = True,
    default: str | None = None,
    generated: bool = False,
    identity: Literal["", "always", "by default"] = "",
    comment: str | None = None,
    enum_labels: tuple[str, ...] = (),
    max_length: int | None = None,
) -> Column:
    sql = base_name.removeprefix("_") + ("[]" if base_name.startswith("_") else "")
    return Column(
        name, sql, sql, base_name, nullable, default, generated, identity, comment, enum_labels, max_length
    )  # fmt: skip


def table(
    name: str,
    *columns: Column,
    key: tuple[str, ...] = (),
    rule: Rule | None = "strict",
    intact: bool = True,
    kind: TableKind = "table",
    comment: str | None = None,
) -> Table:
    fence = (
        Fence(name, rule, "external", "fencepost.f_delete", "" if intact else "its triggers are gone") if rule else None
    )
    everything = [*columns, *([column("last_fence_token", "int8", nullable=False)] if rule else [])]
    schema, _, relation = name.rpartition(".")
    by_name = {one.name: one for one in everything}
    return Table(1, schema or "public", relation, name, kind, comment, False, by_name, key, fence)
