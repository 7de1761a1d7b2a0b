"""The OpenAPI document: valid, complete, and made from the catalog alone."""

import copy
from collections.abc import Iterator
from typing import Any, get_args

import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

# Internal to schemathesis, and the only copy of the OpenAPI 3.1 metaschema at hand; an update may move it.
from schemathesis.specs.openapi.definitions import OPENAPI_31
from tests.unit.catalog_tables import SCALARS, column, table

from fencepost.fencing.problem_type import ProblemType
from fencepost.fencing.problem_types import PROBLEM_TYPES
from fencepost.fencing.problems import Problem
from fencepost.http.openapi.document import build_openapi
from fencepost.http.requests.preferences import HONOURED, Route, read_preferences
from fencepost.storage.tables.catalog import Catalog

Document = dict[str, Any]


ORDERS = table(
    "orders",
    column("order_id", nullable=False, comment="What the customer quotes."),
    column(
        "status",
        nullable=False,
        default="'new'::text",
        comment="Where it stands.",
        enum_labels=("new", "it's shipped"),
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
    app = FastAPI()

    @app.get("/healthz", tags=["service"], summary="Live")
    async def healthz() -> dict[str, str]:
        return {}

    @app.post("/v1/claims", tags=["fences"])
    async def claims(body: dict[str, str]) -> dict[str, str]:
        return body

    @app.get("/v1/locks", tags=["locks"])
    async def locks() -> dict[str, str]:
        return {}

    @app.post("/v1/leases", tags=["locks"])
    async def leases(body: dict[str, str]) -> dict[str, str]:
        return body

    return get_openapi(title="x", version="0", routes=app.routes, tags=[{"name": "fences", "description": "Fences."}])


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


def test_operation_ids_are_unique(document: Document) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert {"list_orders", "update_orders_row", "delete_orders_where"} <= set(ids)


def test_path_parameters_are_those_of_the_template(document: Document) -> None:
    for path, _, operation in operations(document):
        declared = [f"{{{one['name']}}}" for one in operation.get("parameters", []) if one.get("in") == "path"]
        assert path.count("{") == len(declared)
        assert all(name in path for name in declared)
    assert "/v1/data/orders/{order_id}" in document["paths"]
    assert "/v1/data/every%20type/{a_b},{_c_}" in document["paths"]


def test_system_routes_are_kept_and_the_argument_is_not_changed(system: Document) -> None:
    before = copy.deepcopy(system)
    document = build_openapi(CATALOG, system, version="1.2.3")
    assert system == before
    assert {"/healthz", "/v1/claims"} <= document["paths"].keys()
    assert "HTTPValidationError" in document["components"]["schemas"]
    assert document["info"]["version"] == "1.2.3"
    assert [tag["name"] for tag in document["tags"]][-1] == "fences"


def test_the_mark_is_no_column_of_the_document(document: Document) -> None:
    assert "last_fence_token" not in str(document)


def test_every_table_has_a_tag_with_its_comment(document: Document) -> None:
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    assert CATALOG.tables.keys() <= tags.keys()
    assert "What customers ordered." in tags["orders"]
    assert "strict" in tags["orders"]
    assert "fencepost protect audit_log" in tags["audit_log"]
    assert "view" in tags["order_totals"]
    assert "damaged" in tags["damaged"]


@pytest.mark.parametrize("name", ["audit_log", "order_totals"])
def test_what_is_not_protected_is_read_only(document: Document, name: str) -> None:
    assert document["paths"][f"/v1/data/{name}"].keys() == {"get"}


def test_every_write_needs_a_token_and_no_read_takes_one(document: Document) -> None:
    token = {"$ref": "#/components/parameters/FenceToken"}
    for path, method, operation in operations(document):
        if path.startswith("/v1/data/"):
            assert (token in operation["parameters"]) == (method != "get")
            assert ("428" in operation["responses"]) == (method != "get")


WITHOUT_EXAMPLE = {
    "wrong-token-source", "lock-held", "lease-lost", "source-unavailable", "source-failed",  # system routes
    "write-not-found", "resource-stopped", "lock-forbidden",
    "no-such-route", "method-not-allowed",  # no route
    "wrong-host", "cross-site", "request-too-slow", "head-too-large", "too-many-connections",  # before any route
    "internal-error",
}  # fmt: skip
"""Problems that no route of a table answers with, or only when the gateway is broken."""


def test_every_problem_is_an_example_of_an_answer(document: Document) -> None:
    shown = {
        name
        for name, answer in document["components"]["responses"].items()
        if name != "Queued"
        for name in answer["content"]["application/problem+json"]["examples"]
    }
    slugs = {kind.slug for kind in PROBLEM_TYPES}
    assert shown == slugs - WITHOUT_EXAMPLE, "add it to ERRORS of http/openapi/answers.py, or to WITHOUT_EXAMPLE"


def test_a_gateway_with_authentication_promises_its_refusals(system: Document) -> None:
    refusals = {"401", "429"}
    for path, method, operation in operations(build_openapi(CATALOG, system, version="1.2.3", authenticated=True)):
        promised = refusals & operation["responses"].keys()
        assert promised == (set() if operation.get("security") == [] else refusals), (method, path)


ROUTES: dict[tuple[str, str], Route] = {
    ("/v1/data/orders", "get"): "list",
    ("/v1/data/orders", "post"): "insert",
    ("/v1/data/orders", "patch"): "many",
    ("/v1/data/orders", "delete"): "many",
    ("/v1/data/orders/{order_id}", "get"): "row",
    ("/v1/data/orders/{order_id}", "patch"): "one",
    ("/v1/data/orders/{order_id}", "put"): "one",
    ("/v1/data/orders/{order_id}", "delete"): "one",
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
    for name, routes in HONOURED.items():
        there = [each for each in listed if each == name or each.startswith(f"{name}=")]
        assert bool(there) == (route in routes), name
        assert (f"`{name}" in prefer[0]["description"]) == (route in routes), name


def test_every_kind_of_route_is_looked_at_for_prefer() -> None:
    assert set(ROUTES.values()) == set(get_args(Route))


def test_routes_outside_of_v1_have_no_prefer(document: Document) -> None:
    assert "parameters" not in document["paths"]["/healthz"]["get"]


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


def test_tables_whose_names_come_out_alike_keep_schemas_of_their_own(document: Document) -> None:
    def row(path: str) -> Any:
        return document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["items"]

    referred = [
        row(f"/v1/data/{name}")["$ref"] for name in ("orders", "orders.insert", "orders%20insert", "orders_insert")
    ]
    assert len(set(referred)) == 4
    assert "order_id" in resolve(document, referred[0])["properties"]
    assert "id" in resolve(document, referred[1])["properties"]


def test_a_column_named_like_a_query_word_has_no_filter(document: Document) -> None:
    parameters = document["paths"]["/v1/data/select"]["get"]["parameters"]
    names = [one["name"] for one in parameters if "name" in one]
    assert len(names) == len(set(names))


def test_every_example_fits_its_schema(document: Document) -> None:
    checked = 0
    for _, _, operation in operations(document):
        contents = [operation.get("requestBody", {}), *operation["responses"].values()]
        for part in contents:
            whole = resolve(document, part["$ref"]) if "$ref" in part else part
            for content in whole.get("content", {}).values():
                examples = [one["value"] for one in content.get("examples", {}).values()]
                validator = jsonschema_rs.Draft202012Validator(
                    content["schema"] | {"components": document["components"]}
                )
                for example in [*examples, *([content["example"]] if "example" in content else [])]:
                    validator.validate(example)
                    checked += 1
    assert checked > 100


def test_every_parameter_example_fits_its_schema(document: Document) -> None:
    for node in nodes(document):
        schema = node.get("schema")
        if isinstance(schema, dict) and "in" in node:
            shown = [*schema.get("examples", []), *([node["example"]] if "example" in node else [])]
            for example in shown:
                jsonschema_rs.Draft202012Validator(schema).validate(example)


def test_the_problem_schema_names_every_member_of_the_body(document: Document) -> None:
    schema = document["components"]["schemas"]["Problem"]
    body = Problem(ProblemType("FP001", 409, "slug", "title", "meaning", "action"), "detail").body()
    assert set(schema["required"]) == body.keys()
    assert body.keys() <= schema["properties"].keys()


def test_the_prefilled_example_is_the_demo_row(document: Document) -> None:
    item = document["paths"]["/v1/data/orders/{order_id}"]
    assert item["patch"]["parameters"][0]["example"] == "order-123"
    assert item["patch"]["requestBody"]["content"]["application/json"]["example"] == {"status": "it's shipped"}
    assert document["components"]["parameters"]["FenceToken"]["example"] == "34"
