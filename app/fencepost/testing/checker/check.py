"""Check a history by all models, or have a test fail where one of them finds a violation."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

from fencepost.testing.checker import models as promises
from fencepost.testing.checker import register
from fencepost.testing.checker.store import MODELS, Model, NothingToCheckError, Store, Verdict, Violation, Words
from fencepost.testing.history import History, Recorder, read

MOST_VIOLATIONS: Final = 100
"""After so many violations of one model it is not searched further."""

_SEARCHES: Final[dict[Model, Callable[[Store, Words], Iterator[Violation]]]] = {
    "register": register.violations,
    "mutex": promises.mutex_violations,
    "plain_mutex": promises.plain_violations,
    "once": promises.repeated_effects,
    "set": promises.set_violations,
}


def check(history: History, models: Collection[Model] = MODELS) -> Verdict:
    """Check a history against models.

    Raises BadHistoryError when the history is none that can be checked, NothingToCheckError when it has no operation
    that one of the models judges, and UndecidedError when the operations of a resource have too many possible orders.
    """
    with Store() as store:
        store.load(history)
        if (twice := store.doubled_id()) is not None:
            history.require_unique(twice)
        operations, accepted, refused, unknown, resources = store.count()
        if not any(store.judged(model) for model in models):
            raise NothingToCheckError(models, operations)
        promises.settle(store)
        words = Words(store.began())
        found = [violation for model in models for violation in islice(_SEARCHES[model](store, words), MOST_VIOLATIONS)]
    found.sort(key=lambda violation: violation.events[-1].time)
    return Verdict(not found, tuple(found), operations, accepted, refused, unknown, resources)


# Assertions for tests, about what a Recorder has until now, or about a history that `read` has opened.
#
# A history in which there is nothing to assert about raises NothingToCheckError: the test has recorded something else
# than it meant to.


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
