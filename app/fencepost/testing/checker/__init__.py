"""The checker: judges a history by what was asked and answered, and shares no code with what it judges."""

from fencepost.testing.checker.check import assert_exactly_once, assert_fenced, assert_mutual_exclusion, check
from fencepost.testing.checker.store import MODELS, Model, NothingToCheckError, UndecidedError, Verdict, Violation

__all__ = [
    "MODELS",
    "Model",
    "NothingToCheckError",
    "UndecidedError",
    "Verdict",
    "Violation",
    "assert_exactly_once",
    "assert_fenced",
    "assert_mutual_exclusion",
    "check",
]
