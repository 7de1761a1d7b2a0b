"""Assertions for tests.

A history in which there is nothing to assert about raises NothingToCheckError: the test has recorded something else
than it meant to.
"""

from fencepost.testing.checker.check import check
from fencepost.testing.checker.verdict import Model
from fencepost.testing.history import History


def assert_fenced(history: History) -> None:
    """Assert that no stale write was accepted, and that each reading saw the latest accepted one."""
    _assert(history, "register", "set")


def assert_exactly_once(history: History) -> None:
    """Assert that operations with one Idempotency-Key had one effect, and were all answered alike."""
    _assert(history, "once")


def assert_mutual_exclusion(history: History) -> None:
    """Assert that the tokens of a lock's grants rise, each above those of all grants before it."""
    _assert(history, "mutex")


def _assert(history: History, *models: Model) -> None:
    verdict = check(history, models)
    if not verdict.valid:
        raise AssertionError("\n\n".join(violation.words for violation in verdict.violations))
