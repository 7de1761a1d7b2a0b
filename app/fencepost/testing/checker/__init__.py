"""The checker: judges a history by what was asked and answered, and shares no code with what it judges."""

from fencepost.testing.checker.asserting import assert_exactly_once, assert_fenced, assert_mutual_exclusion
from fencepost.testing.checker.check import check
from fencepost.testing.checker.errors import NothingToCheckError, UndecidedError
from fencepost.testing.checker.verdict import MODELS, Model, Verdict, Violation

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
