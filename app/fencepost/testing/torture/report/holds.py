"""From when to when a process held a lock or a resource, as far as its operations show it."""

from collections.abc import Iterable
from dataclasses import dataclass

from fencepost.testing.torture.report.operation import Operation


@dataclass(slots=True)
class Hold:
    """A span in which a process was the newest holder, in nanoseconds.

    It begins with an `acquire`, or else with the first accepted token that is above all before. It ends with the
    `release`, with the next holder's begin, or when its lease expires; `last` is the last moment at which the process
    still acted as the holder after that.
    """

    process: str
    start: int
    end: int
    last: int
    first_token: int | None
    last_token: int | None
    passed_on: bool = False
    """Whether it ended without a release: the process may not know."""
    expires: int | None = None

    @property
    def tokens(self) -> str:
        """The tokens that it was seen with: `34`, `34-36`, or empty."""
        if self.first_token is None:
            return ""
        return str(self.first_token) if self.last_token == self.first_token else f"{self.first_token}-{self.last_token}"


class _Holders:
    """Goes through the operations in the order of their ends, and keeps who holds."""

    def __init__(self, last_moment: int) -> None:
        self.holds: list[Hold] = []
        self._last_moment = last_moment
        self._current: Hold | None = None
        self._latest: dict[str, Hold] = {}
        self._highest = -1

    def saw(self, operation: Operation, moment: int) -> None:
        own = self._current is not None and self._current.process == operation.process
        if operation.op == "acquire":
            if operation.outcome == "ok":
                self._begin(operation, moment)
        elif operation.op == "release":
            self._release(operation, moment)
        elif operation.outcome == "ok" and operation.token is not None and operation.token > self._highest:
            if own:
                self._extend(operation.token)
            else:
                self._begin(operation, moment)
        if (latest := self._latest.get(operation.process)) is not None:
            latest.last = max(latest.last, moment)

    def _begin(self, operation: Operation, moment: int) -> None:
        self.close(moment)
        token, expires = operation.token, None if operation.end is None else operation.end.expires
        self._current = Hold(operation.process, moment, self._last_moment, moment, token, token, expires=expires)
        self._latest[operation.process] = self._current
        self.holds.append(self._current)
        if token is not None:
            self._highest = max(self._highest, token)

    def _extend(self, token: int) -> None:
        self._highest = token
        if self._current is not None:
            self._current.last_token = token
            self._current.first_token = token if self._current.first_token is None else self._current.first_token

    def _release(self, operation: Operation, moment: int) -> None:
        if operation.outcome == "refused":
            return
        hold = self._latest.pop(operation.process, None)
        if hold is None:
            return
        hold.last = moment
        if hold is self._current:
            hold.end = moment
            self._current = None

    def close(self, moment: int) -> None:
        """End the hold that lasts until now, if there is one."""
        hold, self._current = self._current, None
        if hold is None:
            return
        hold.end = moment
        hold.passed_on = moment < self._last_moment
        if hold.expires is not None and hold.start <= hold.expires < moment:
            hold.end, hold.passed_on = hold.expires, True


def find_holds(operations: Iterable[Operation], last_moment: int) -> list[Hold]:
    """Give the holds that these operations of one resource show. One that nothing ends lasts until `last_moment`."""
    holders = _Holders(last_moment)
    ended = [(o.ended if o.ended is not None else o.invoked, o.invoked, o.id, o) for o in operations]
    for moment, _, _, operation in sorted(ended, key=lambda e: e[:3]):
        holders.saw(operation, moment)
    holders.close(last_moment)
    return holders.holds
