"""The eight combinations, and what one process of them is given."""

import itertools
import json
from dataclasses import asdict, dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers are on."""

    lock: bool
    queue: bool
    fence: bool

    @property
    def name(self) -> str:
        """As in the logs' names: lock-queue-fence."""
        return "-".join(name for name, on in asdict(self).items() if on) or "none"


COMBINATIONS: Final = tuple(Layers(*on) for on in itertools.product((False, True), repeat=3))
QUEUE: Final = "postgres:default"
LOCK_MS: Final = 300
"""TTL of the Redis lock: shorter than the pauses of a worker."""
TAKEN_OVER_MS: Final = 3000
"""After how long the plain consumer's partitions pass to another."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker or a plain consumer is given, as JSON on its command line."""

    name: str
    layers: Layers
    redis: str
    database: str
    gateway: str
    socket: str
    seed: int

    def text(self) -> str:
        """Write it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Setup":
        """Read it."""
        given = json.loads(text)
        return cls(**{**given, "layers": Layers(**given["layers"])})


@dataclass(frozen=True, slots=True)
class Event:
    """A change of an order: its version is now `version`. Events of an order come in the order of their versions."""

    order: str
    version: int

    @property
    def id(self) -> str:
        """Names it, however often it is delivered."""
        return f"{self.order}-{self.version}"
