"""What keeps a history from being judged, although it is one."""

from collections.abc import Iterable
from typing import Final

_NEEDED: Final = {
    "register": "an accepted write, delete, claim or read, or a refusal of one as stale, as spent, or with a mark",
    "mutex": "a grant of a lock",
    "plain_mutex": "a grant of a lock",
    "once": "an accepted operation with an Idempotency-Key",
    "set": "an accepted read_set",
}
"""What a history must have for each model to have anything to judge."""


class NothingToCheckError(Exception):
    """No operation of the history is one that the models judge: it would keep every promise, whatever was done."""

    def __init__(self, models: Iterable[str], operations: int) -> None:
        needed = dict.fromkeys(f"{model}: {_NEEDED[model]}" for model in models)
        super().__init__(
            f"nothing to check: the history has {operations} operations, and none that could break a promise. One of"
            f" these is needed: {'; '.join(needed)}"
        )


class UndecidedError(Exception):
    """There are more ways to order the operations of one resource than can be looked through."""

    def __init__(self, resource: str, states: int) -> None:
        super().__init__(
            f"{resource} cannot be judged: too many operations under one token, or with unknown outcome, were under way"
            f" at the same time, and it can be in more than {states} states. Use fewer clients for this resource, or a"
            " token for each write"
        )
