"""The operations of one resource that are drawn, picked while the history goes by."""

from collections import deque
from dataclasses import dataclass, field

from fencepost.testing.torture.report.choice import Drawn
from fencepost.testing.torture.report.operation import Operation


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operations that are not drawn: how many, and the time of the drawn one before them (None: there is none)."""

    after: int | None
    operations: int


@dataclass(slots=True)
class Excerpt:
    """Operations in the order in which they began, and where some were left out."""

    drawn: Drawn
    operations: list[Operation] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def not_drawn(self) -> int:
        """How many operations on the resource are not drawn."""
        return sum(gap.operations for gap in self.left_out)


class Picker:
    """Keeps the operations around anchors. What it holds meanwhile is bounded: the last few before the next anchor."""

    def __init__(self, drawn: Drawn) -> None:
        self.excerpt = Excerpt(drawn)
        self._recent: deque[Operation] = deque()
        self._dropped = 0
        # Without an anchor the excerpt is the beginning.
        self._still = 0 if drawn.anchors or drawn.around is None else 2 * drawn.around

    def take(self, operation: Operation) -> None:
        """See the next operation on this resource."""
        around = self.excerpt.drawn.around
        if around is None:
            self.excerpt.operations.append(operation)
        elif operation.id in self.excerpt.drawn.anchors:
            self._keep_recent()
            self.excerpt.operations.append(operation)
            self._still = max(self._still, around)
        elif self._still > 0:
            self._still -= 1
            self.excerpt.operations.append(operation)
        else:
            self._remember(operation, around)

    def finish(self) -> Excerpt:
        """Give what was picked, when the history is over."""
        self._dropped += len(self._recent)
        self._recent.clear()
        self._note_dropped()
        return self.excerpt

    def _remember(self, operation: Operation, around: int) -> None:
        self._recent.append(operation)
        if len(self._recent) > around:
            self._recent.popleft()
            self._dropped += 1

    def _keep_recent(self) -> None:
        self._note_dropped()
        self.excerpt.operations.extend(self._recent)
        self._recent.clear()

    def _note_dropped(self) -> None:
        if self._dropped:
            kept = self.excerpt.operations
            self.excerpt.left_out.append(LeftOut(kept[-1].invoked if kept else None, self._dropped))
            self._dropped = 0
