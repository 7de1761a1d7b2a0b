"""JSON as it may stand in a JWT or in a set of keys: an object in UTF-8, each name once in it."""

import json
from typing import Any


def read_object(raw: bytes) -> dict[str, Any]:
    """Read an object. Raises ValueError, which says what is wrong and quotes nothing."""
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_each_name_once, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - it is what was sent, not an argument of ours
    return found


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values under one name would be read as one by the signer, and as the other here."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a name twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
