"""The check of a whole history: reads it once, sorts it on disk, and asks each model."""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

from fencepost.testing.checker import mutex, once, register, sets
from fencepost.testing.checker.errors import NothingToCheckError
from fencepost.testing.checker.store import Store
from fencepost.testing.checker.verdict import MODELS, Model, Verdict, Violation
from fencepost.testing.checker.words import Words
from fencepost.testing.history import History

MOST: Final = 100
"""After so many violations of one model it is not searched further."""

_SEARCHES: Final[dict[Model, Callable[[Store, Words], Iterator[Violation]]]] = {
    "register": register.violations,
    "mutex": mutex.violations,
    "plain_mutex": mutex.plain_violations,
    "once": once.violations,
    "set": sets.violations,
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
        once.settle(store)
        words = Words(store.began())
        found = [violation for model in models for violation in islice(_SEARCHES[model](store, words), MOST)]
    found.sort(key=lambda violation: violation.events[-1].time)
    return Verdict(not found, tuple(found), operations, accepted, refused, unknown, resources)
