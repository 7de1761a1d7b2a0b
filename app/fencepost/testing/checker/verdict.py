"""What a check came to."""

from dataclasses import dataclass
from typing import Literal, get_args

from fencepost.testing.history import Event

Model = Literal["register", "mutex", "plain_mutex", "once", "set"]
"""register: accepted operations of a resource form one order in which tokens rise. mutex: so do grants of a lock.
plain_mutex: no two holders believe at the same time that they hold a lock; no lease can promise it. once: operations
with one Idempotency-Key have one effect. set: what was added is there afterwards."""

ALL_MODELS: tuple[Model, ...] = get_args(Model)
MODELS: tuple[Model, ...] = ("register", "mutex", "once", "set")
"""What is checked unless other models are asked for."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and the fewest events that show it."""

    model: Model
    resource: str
    words: str
    events: tuple[Event, ...]
    """In the order of their times. None of them can be left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and how much was looked at."""

    valid: bool
    violations: tuple[Violation, ...]
    operations: int
    accepted: int
    refused: int
    unknown: int
    resources: int
