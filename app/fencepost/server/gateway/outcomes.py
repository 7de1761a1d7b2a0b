"""What a use case answers with: rows, or a problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.server.fence.problems import Problem


@dataclass(slots=True)
class Done:
    """The result of a use case: rows as JSON texts, and the mark of a single protected row."""

    rows: Sequence[str]
    mark: int | None = None
    created: bool = False
    total: int | None = None
    """How many rows match in all, when it was asked for (`Prefer: count=exact`)."""
    resource: str = ""
    """The full name of the one resource that was claimed or made."""
    resources: Sequence[str] | None = None
    """The names of all resources that were written; None where they were not asked for."""
    scope: str = ""
    """The name of the one scope that was written to or claimed (R8)."""


Outcome = Done | Problem
