"""What authentication adds to the OpenAPI document: how a request says who sends it, and the answers if it does not."""

from typing import Any, Final

from fencepost.server.http.admission import is_for_all, needs

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


def secure(document: Part) -> None:
    """Add to a document of a gateway that has authentication."""
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{"token": []}]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            needed = needs(method.upper(), path)
            if needed == "nothing":
                operation["security"] = []
                continue
            if is_for_all(path):  # and shows more to callers
                operation["security"] = [{}, {"token": []}]
            answers = operation["responses"]
            answers.setdefault("401", {"$ref": "#/components/responses/Unauthenticated"})
            answers.setdefault("429", {"$ref": "#/components/responses/TooManyRequests"})
            answers.setdefault("503", {"$ref": "#/components/responses/Unverified"})
            if needed in ("read", "write", "lock"):
                answers.setdefault("403", {"$ref": "#/components/responses/OutOfScope"})
