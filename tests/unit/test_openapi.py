"""The OpenAPI document: valid, complete, and made from the catalog alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from fastapi.openapi.utils import get_openapi
from schemathesis.specs.openapi.definitions import OPENAPI_31
from tests.unit.catalog_tables import SCALARS, column, table

from fencepost.server.fence.problem_types import PROBLEM_TYPES
from fencepost.server.http.headers import PREFERENCES, Route, read_preferences
from fencepost.server.http.openapi import build_openapi
from fencepost.server.http.openapi_answers import ERRORS
from fencepost.server.http.openapi_parts import column_schema, value_schema
from fencepost.server.postgres.tables import Catalog
from fencepost.server.serve import create_app
from fencepost.server.settings import Settings

Document = dict[str, Any]


ORDERS = table(
    "orders",
    column("order_id", nullable=False, comment="What the customer quotes."),
    column(
        "status", nullable=False, default="'new'::text", comment="Where it stands.", enum_labels=("new", "it's shipped")
    ),
    column("note", "varchar", max_length=40),
    column("quantity", "int4", nullable=False, default="1"),
    column("created_at", "timestamptz", nullable=False, default="now()"),
    column("total", "numeric", generated=True),
    column("number", "int8", nullable=False, identity="always"),
    column("customer", "uuid", nullable=False),
    column("tags", "_text", nullable=False, default="'{}'::text[]"),
    key=("order_id",),
    comment="What customers ordered.",
)
EVERYTHING = table(
    "every type",
    column("a/b", "int4", nullable=False),
    column("{c}", "date", nullable=False),
    *(column(f"the {name}", name) for name in SCALARS),
    *(column(f"many {name}", f"_{name}") for name in SCALARS),
    key=("a/b", "{c}"),
)
CATALOG = Catalog(
    1,
    {
        one.name: one
        for one in (
            ORDERS,
            EVERYTHING,
            table("orders.insert", column("id", "int4", nullable=False), key=("id",), rule="epoch"),
            table("orders insert", column("id", "int4", nullable=False), key=("id",)),
            table("orders_insert", column("id", "int4", nullable=False), key=("id",)),
            table("audit_log", column("line"), rule=None),
            table("select", column("select"), column("order"), column("or")),
            table("order_totals", column("order_id"), rule=None, kind="view"),
            table("nothing but a key", column("id", "bool", nullable=False), key=("id",)),
            table("empty", rule=None),
            table("damaged", column("id", "int4"), key=("id",), intact=False),
        )
    },
)


@pytest.fixture(scope="module")
def system() -> Document:
    app = create_app(Settings.model_validate({"database_url": "postgresql://unused"}))
    return get_openapi(title="x", version="0", routes=app.routes, tags=app.openapi_tags)


@pytest.fixture(scope="module")
def document(system: Document) -> Document:
    return build_openapi(CATALOG, system, version="1.2.3")


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def nodes(value: object) -> Iterator[Document]:
    """Walk over every object of the document."""
    if isinstance(value, dict):
        yield value
        for member in value.values():
            yield from nodes(member)
    elif isinstance(value, list):
        for member in value:
            yield from nodes(member)


def resolve(document: Document, reference: str) -> Any:
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def test_the_document_is_valid_openapi_3_1(document: Document) -> None:
    jsonschema_rs.Draft202012Validator(OPENAPI_31).validate(document)
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_every_reference_leads_somewhere(document: Document) -> None:
    for node in nodes(document):
        if isinstance(reference := node.get("$ref"), str):
            assert resolve(document, reference)


def test_every_write_needs_a_token_and_no_read_takes_one(document: Document) -> None:
    token = {"$ref": "#/components/parameters/FenceToken"}
    for path, method, operation in operations(document):
        if path.startswith("/v1/data/"):
            assert (token in operation["parameters"]) == (method != "get")
            assert ("428" in operation["responses"]) == (method != "get")


def test_a_table_with_a_queue_only_queues_writes_and_takes_no_token(system: Document) -> None:
    assert ORDERS.fence is not None
    queued = replace(ORDERS, fence=replace(ORDERS.fence, source="postgres:default"))
    document = build_openapi(Catalog(1, {"orders": queued}), system, version="1.2.3")
    assert "all its writes go through the queue *postgres:default*, without a token" in str(document["tags"])
    writes = [operation for _, method, operation in operations(document) if method in {"put", "patch"}]
    assert writes
    for write in writes:
        assert "202" in write["responses"]
        assert {"$ref": "#/components/parameters/FenceToken"} not in write["parameters"]
        assert not {"200", "201", "204", "409", "428"} & write["responses"].keys()


def test_every_problem_is_an_example_of_an_answer(document: Document) -> None:
    shown = {
        name
        for name, answer in document["components"]["responses"].items()
        if name != "Queued"
        for name in answer["content"]["application/problem+json"]["examples"]
    }
    slugs = {kind.slug for kind in PROBLEM_TYPES}
    assert {name for kind in PROBLEM_TYPES for name in kind.openapi} == ERRORS.keys()
    # Problems that no route of a table answers with, or only when the gateway is broken.
    without_example = {
        "wrong-token-source", "lock-held", "lease-lost", "source-unavailable", "source-failed",  # system routes
        "write-not-found", "resource-stopped", "lock-forbidden",
        "earlier-line-first",  # a line of a batch, in an answer of 200
        "no-such-route", "method-not-allowed",  # no route
        "wrong-host", "cross-site", "request-too-slow", "head-too-large", "too-many-connections",  # before any route
        "internal-error",
    }  # fmt: skip
    assert shown == slugs - without_example, (
        "name the answers that show it in its entry (openapi=), or add it to without_example"
    )


ROUTES: dict[tuple[str, str], Route] = {
    ("/v1/data/orders", "get"): "list",
    ("/v1/data/orders", "post"): "post",
    ("/v1/data/orders", "patch"): "patch-rows",
    ("/v1/data/orders", "delete"): "delete-rows",
    ("/v1/data/orders/{order_id}", "get"): "row",
    ("/v1/data/orders/{order_id}", "patch"): "patch",
    ("/v1/data/orders/{order_id}", "put"): "put",
    ("/v1/data/orders/{order_id}", "delete"): "delete",
    ("/v1/locks", "get"): "look",
    ("/v1/claims", "post"): "claim",
    ("/v1/leases", "post"): "lease",
}


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=[f"{method} {path}" for path, method in ROUTES])
def test_prefer_lists_all_that_the_route_honours(document: Document, path: str, method: str) -> None:
    route = ROUTES[path, method]
    references = [each.get("$ref", "") for each in document["paths"][path][method]["parameters"]]
    prefer = [found for each in references if (found := resolve(document, each or "#/info")).get("name") == "Prefer"]
    assert len(prefer) == 1
    listed = prefer[0]["schema"]["enum"]
    for spelled in listed:
        read = read_preferences(spelled.encode(), route)
        assert read.queued if spelled == "respond-async" else read.applied == spelled.encode()
    for each in PREFERENCES:
        there = [spelled for spelled in listed if spelled.partition("=")[0] == each.name]
        assert bool(there) == (route in each.routes), each.name
        assert (f"`{each.name}" in prefer[0]["description"]) == (route in each.routes), each.name


def test_every_column_is_described_with_its_comment_enum_default_and_length(document: Document) -> None:
    row = document["components"]["schemas"]["orders"]["properties"]
    assert row["order_id"]["description"].startswith("What the customer quotes.")
    assert row["status"]["enum"] == ["new", "it's shipped"]
    assert row["status"]["default"] == "new"
    assert row["quantity"]["default"] == 1
    assert row["quantity"]["maximum"] == 2**31 - 1
    assert "`now()`" in row["created_at"]["description"]
    assert "default" not in row["created_at"]
    assert row["note"]["maxLength"] == 40
    assert row["note"]["type"] == ["string", "null"]
    assert row["total"]["readOnly"]
    assert row["number"]["readOnly"]


def test_an_insert_needs_what_nothing_else_fills(document: Document) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["orders.insert"]["required"] == ["order_id", "customer"]
    assert not {"total", "number"} & schemas["orders.insert"]["properties"].keys()
    assert schemas["orders.replace"]["required"] == ["customer"]
    assert "required" not in schemas["orders.update"]
    assert "order_id" not in schemas["orders.update"]["properties"]


def test_every_example_fits_its_schema(document: Document) -> None:
    checked, seen = 0, set[int]()
    for _, _, operation in operations(document):
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for part in contents:
            whole = resolve(document, part["$ref"]) if "$ref" in part else part
            for content in whole.get("content", {}).values():
                if id(content) in seen:  # of an answer that operations share
                    continue
                seen.add(id(content))
                examples = [one["value"] for one in content.get("examples", {}).values()]
                validator = jsonschema_rs.Draft202012Validator(
                    content["schema"] | {"components": document["components"]}
                )
                for example in [*examples, *([content["example"]] if "example" in content else [])]:
                    validator.validate(example)
                    checked += 1
    assert checked > 100


def test_every_type_takes_null_only_where_its_column_does() -> None:
    for base in (base for name in SCALARS for base in (name, f"_{name}")):
        takes = jsonschema_rs.Draft202012Validator(value_schema(column("c", base)))
        refuses = jsonschema_rs.Draft202012Validator(value_schema(column("c", base, nullable=False)))
        assert takes.is_valid(None), base
        assert refuses.is_valid(None) == (base in ("json", "jsonb")), base


@pytest.mark.parametrize(
    ("base_name", "default", "expected"),
    [
        ("text", "'new'::text", "new"),
        ("text", "'it''s'::text", "it's"),
        ("int4", "'-1'::integer", -1),
        ("numeric", "'NaN'::numeric", "NaN"),
        ("bool", "false", False),
        ("jsonb", "'{\"a\": [1]}'::jsonb", {"a": [1]}),
        ("date", "'2026-01-01'::date", "2026-01-01"),
    ],
)
def test_a_literal_default_is_described_as_json(base_name: str, default: str, expected: object) -> None:
    assert column_schema(column("c", base_name, default=default))["default"] == expected


@pytest.mark.parametrize(
    ("base_name", "default"),
    [
        ("timestamptz", "now()"),
        ("int8", "nextval('s'::regclass)"),
        ("text", "('a'::text || 'b'::text)"),
        ("_text", "'{}'::text[]"),
    ],
)
def test_a_computed_default_is_described_in_words_only(base_name: str, default: str) -> None:
    schema = column_schema(column("c", base_name, default=default))
    assert "default" not in schema
    assert default in schema["description"]


@pytest.mark.parametrize("base", ["numeric", "float4", "float8"])
def test_numbers_that_json_cannot_write_are_strings(base: str) -> None:
    validator = jsonschema_rs.Draft202012Validator(value_schema(column("c", base)))
    assert all(map(validator.is_valid, (1.5, 2, "NaN", "Infinity", "-Infinity", None)))
    assert not validator.is_valid("1.5")
