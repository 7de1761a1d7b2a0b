"""Columns in the OpenAPI document: types, null, defaults."""

import jsonschema_rs
import pytest
from tests.unit.catalog_tables import SCALARS, column

from fencepost.http.openapi.types import column_schema, value_schema


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
