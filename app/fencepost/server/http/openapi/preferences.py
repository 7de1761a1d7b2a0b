"""The header `Prefer` in the document: for each kind of route, all that http/requests/preferences.py honours there."""

from typing import Any, Final, get_args

from fencepost.server.http.requests.preferences import PREFERENCES, Route, spellings

Part = dict[str, Any]


def _prefer_parameter(route: Route) -> Part:
    """Describe the header on one kind of route."""
    effects = [each.effect for each in PREFERENCES if route in each.routes]
    return {
        "name": "Prefer",
        "in": "header",
        "description": " ".join([*effects, "Several are joined by commas. Any other preference is refused."]),
        "schema": {"type": "string", "enum": list(spellings(route))},
    }


PREFER: Final[dict[str, Part]] = {f"Prefer.{route}": _prefer_parameter(route) for route in get_args(Route)}
"""Parameters by the names of their components."""


def prefer(route: Route) -> Part:
    """Refer to the parameter of one kind of route."""
    return {"$ref": f"#/components/parameters/Prefer.{route}"}


def with_prefer(paths: Part) -> Part:
    """Return the system routes' path items with the header; only those under /v1/ look at it."""
    return {path: _item(path, item) if path.startswith("/v1/") else item for path, item in paths.items()}


def _item(path: str, item: Part) -> Part:
    return {
        method: operation | {"parameters": [*operation.get("parameters", []), prefer(_route_of(path, method))]}
        for method, operation in item.items()
    }


def _route_of(path: str, method: str) -> Route:
    if method == "get":
        return "look"
    return "claim" if path == "/v1/claims" else "lease"
