"""What a consumer reports while it runs."""

from typing import Protocol

from fencepost.server.queues.log import Received


class Reports(Protocol):
    """Of one queue, as one process consumes it."""

    def paused(self, reason: str) -> None:
        """Nothing is decided, or nothing is taken, for now."""
        ...

    def resumed(self) -> None: ...

    def dead_letter(self, received: Received, reason: str) -> None:
        """A message became a dead letter."""
        ...

    def blocked(self, received: Received, reason: str) -> None:
        """A message is tried in vain for long, and goes on being tried; called once for it."""
        ...

    def fault(self, error: Exception) -> None:
        """The gateway has a fault. Called where the error is handled."""
        ...
