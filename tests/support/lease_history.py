"""What was granted and minted, and the checker: later grants of a lock have higher tokens, and no token comes twice.

It shares no code with what it judges; it knows tokens, locks, and when a request began and was answered.
"""

import math
from dataclasses import dataclass, field

from tests.support.violations import judging


@dataclass
class Grant:
    """A lease: all tokens that it was given, in order, and when it was asked for and answered (any rising clock)."""

    locks: tuple[str, ...]
    began: float
    answered: float
    tokens: list[int]


@dataclass
class History:
    """Everything that was acknowledged."""

    grants: list[Grant] = field(default_factory=list)
    step: int = 0

    def tick(self) -> int:
        self.step += 1
        return self.step

    def check(self) -> None:
        """Raise Violation when the order of tokens is broken."""
        with judging(math.inf):
            self._check()

    def _check(self) -> None:
        issued = [token for grant in self.grants for token in grant.tokens]
        assert len(issued) == len(set(issued)), f"issued twice: {sorted(t for t in issued if issued.count(t) > 1)[:10]}"
        for grant in self.grants:
            assert grant.tokens == sorted(grant.tokens), f"a lease's tokens fall: {grant}"
        for lock in {lock for grant in self.grants for lock in grant.locks}:
            of_this_lock = sorted((g for g in self.grants if lock in g.locks), key=lambda grant: grant.tokens[0])
            highest = 0
            latest_start = 0.0
            for grant in of_this_lock:
                assert grant.tokens[0] > highest, f"{lock}: {grant} was granted below {highest}, of an earlier grant"
                assert grant.answered > latest_start, f"{lock}: {grant} was answered before a lower one was asked for"
                highest = max(highest, *grant.tokens)
                latest_start = max(latest_start, grant.began)
