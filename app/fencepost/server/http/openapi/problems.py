"""The errors of a route, as OpenAPI describes them."""

from typing import Any

_PROBLEM: dict[str, Any] = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
}


def problems(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """Document these errors of a route."""
    return {status: {"description": text, **_PROBLEM} for status, text in statuses}
