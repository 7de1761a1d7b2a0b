"""Assertions for tests, about what a Recorder has until now, or about a history that `read` has opened.

A history in which there is nothing to assert about raises NothingToCheckError: the test has recorded something else
than it meant to.
"""

from fencepost.testing.checker.check import check
from fencepost.testing.checker.verdict import Model
from fencepost.testing.history import History, Recorder, read


def assert_fenced(history: History | Recorder) -> None:
    """Assert that no stale write was accepted, and that each reading saw the latest accepted one."""
    _assert(history, "register", "set")


def assert_exactly_once(history: History | Recorder) -> None:
    """Assert that operations with one Idempotency-Key had one effect, and were all answered alike."""
    _assert(history, "once")


def assert_mutual_exclusion(history: History | Recorder) -> None:
    """Assert that the tokens of a lock's grants rise, each above those of all grants before it."""
    _assert(history, "mutex")


def _assert(history: History | Recorder, *models: Model) -> None:
    verdict = check(_history(history), models)
    if not verdict.valid:
        raise AssertionError("\n\n".join(violation.words for violation in verdict.violations))


def _history(recorded: History | Recorder) -> History:
    if isinstance(recorded, Recorder):
        return recorded.history if recorded.path is None else read(recorded.path)
    if not isinstance(recorded, History):
        raise TypeError(f"an assertion takes a Recorder, or a history as read(path) gives it, and not {recorded!r}")
    return recorded
