"""How many messages a consumer has in hand: taken, and not said to be done."""

from collections.abc import Sequence

from fencepost.server.queues.log import Received

_REFILLED_AT = 0.75
"""More are taken when no more than this part is in hand: few at a time would make small batches of writes."""


def size_of(received: Received) -> int:
    """Count about how many bytes a message has."""
    message = received.message
    return 200 + len(message.key) + len(message.value or b"") + sum(len(value) for _, value in message.headers)


class InHand:
    """Counts them, and says for how many there is room. Of bytes there may be more than `most_bytes` by what one `take`
    gives (TAKEN_BYTES).
    """

    def __init__(self, messages: int, most_bytes: int) -> None:
        self._most = messages
        self._most_bytes = most_bytes
        self.count = 0
        self.bytes = 0

    def add(self, received: Sequence[Received]) -> None:
        """These were taken."""
        self.count += len(received)
        self.bytes += sum(size_of(each) for each in received)

    def remove(self, received: Sequence[Received]) -> None:
        """These are done, or given back."""
        self.count -= len(received)
        self.bytes -= sum(size_of(each) for each in received)

    def room(self) -> int:
        """Say how many to take now; 0: none yet."""
        if self.count > self._most * _REFILLED_AT or self.bytes > self._most_bytes * _REFILLED_AT:
            return 0
        return self._most - self.count
