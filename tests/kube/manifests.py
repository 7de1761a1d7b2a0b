"""The manifests of deploy/kubernetes, as objects."""

import importlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
_yaml: Any = importlib.import_module("yaml")  # it has no hints


def objects(file: str) -> list[dict[str, Any]]:
    """Read one file."""
    return list(_yaml.safe_load_all((FOLDER / file).read_text()))


def object_of(file: str, kind: str) -> dict[str, Any]:
    """Read the one object of this kind."""
    (found,) = (one for one in objects(file) if one["kind"] == kind)
    return found
