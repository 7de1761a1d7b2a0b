"""Sends a request for one or more recorded operations, and records how they ended if they did not happen."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fencepost.testing.history import Operation
from fencepost.testing.torture.holders.exchange import Answer, Exchange, LostError, NotSentError
from fencepost.testing.torture.holders.outcomes import Refused, Unknown, outcome
from fencepost.testing.torture.tally import How, Tally

ANSWERS_WITHIN: Final = 5.0
"""Seconds after which a request counts as lost. A gateway that is paused for longer has not answered."""
_BACK_OFF: Final = 0.1
"""Seconds before the next request, after one that no gateway could take."""
_AVOIDED_FOR: Final = 0.5  # seconds
_BUSY: Final = 503
_MISSING: Final = 404


class Sender:
    """The connections of one client, one to each gateway."""

    def __init__(
        self,
        gateways: Sequence[str],
        dice: random.Random,
        tally: Tally,
        slot: int,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._exchanges = [Exchange(url, within=ANSWERS_WITHIN, token=token) for url in gateways]
        self._avoided = dict.fromkeys(self._exchanges, 0.0)
        self._dice, self._tally, self._slot = dice, tally, slot

    def close(self) -> None:
        for exchange in self._exchanges:
            exchange.close()

    async def send(
        self,
        operations: Sequence[Operation],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: object = None,
    ) -> Answer | None:
        """Send a request to one of the gateways; returns the answer if the operations happened.

        They have no end yet then: the caller knows what it is. If they did not happen, or that is unknown, this is
        recorded, and the result is None. The answer to a GET for a row that is not there counts as one.
        """
        try:
            exchange = self._choose()
            answer = await exchange.send(method, path, headers, body)
        except NotSentError:
            self._end(operations, Refused("other", "not sent"), "unsent")
            await self._avoid(exchange)
            return None
        except LostError as error:
            self._end(operations, Unknown(str(error)), "unknown")
            await self._avoid(exchange)
            return None
        found = answer if method == "GET" and answer.status == _MISSING else outcome(answer)
        if isinstance(found, Answer):
            self.count("accepted", len(operations))
            return found
        self._end(operations, found, "refused" if isinstance(found, Refused) else "unknown")
        if answer.status == _BUSY:
            await asyncio.sleep(_BACK_OFF)
        return None

    def count(self, how: How, operations: int = 1) -> None:
        for _ in range(operations):
            self._tally.count(self._slot, how)

    def _choose(self) -> Exchange:
        """Choose a gateway, rather one that has answered last time."""
        now = time.monotonic()
        return self._dice.choice([each for each in self._exchanges if self._avoided[each] < now] or self._exchanges)

    async def _avoid(self, exchange: Exchange) -> None:
        """Leave a gateway alone for a while: a dead one would make all operations fail, and soon."""
        self._avoided[exchange] = time.monotonic() + _AVOIDED_FOR
        await asyncio.sleep(_BACK_OFF)

    def _end(self, operations: Sequence[Operation], how: Refused | Unknown, counted: How) -> None:
        if isinstance(how, Refused) and len(operations) > 1:
            how = Refused("other", how.code)  # one of them was refused for this reason, the others because of that one
        for operation in operations:
            if isinstance(how, Unknown):
                operation.unknown(how.why)
            else:
                operation.refused(how.reason, mark=how.mark)
        self.count(counted, len(operations))
