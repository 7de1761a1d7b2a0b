"""What must hold: the scenes as the rules have them. What must fail, with a rule switched off, is in switches.py."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["safety", "liveness"]


@dataclass(frozen=True, slots=True)
class Check:
    """A scene with its sizes. `defines` are those of the C preprocessor; `kind`: what SPIN looks for."""

    scene: str
    defines: tuple[str, ...] = ()
    kind: Kind = "safety"
    optimized: bool = False
    """Whether its search is so long that it pays to compile it with optimization."""

    @property
    def title(self) -> str:
        """The scene and what differs from its plain form, for people."""
        return " ".join((self.scene, *self.defines))


def scene(name: str, *defines: str, optimized: bool = False) -> Check:
    """Give a check for errors of safety."""
    return Check(name, defines, optimized=optimized)


HOLDING: Final = (
    scene("protocol", optimized=True),
    scene("protocol", "EPOCH", optimized=True),
    scene("grants"),
    scene("pruning"),
    scene("replace"),
    Check("replace", ("LIVENESS",), "liveness"),
    Check("retry", (), "liveness"),
    scene("scope"),
    scene("many"),
    scene("many", "EPOCH"),
    scene("batch"),
    scene("batch", "EPOCH"),
    scene("unknown"),
    scene("unknown", "EPOCH"),
    scene("idempotent"),
    scene("idempotent", "EPOCH"),
    scene("failover"),
    scene("failover", "EPOCH"),
    scene("source"),
    scene("direct"),
    scene("direct", "EPOCH"),
    scene("order"),
)
"""The sizes that `make model` and the tests run."""

LARGE: Final = (
    scene("protocol", "WRITES=3", optimized=True),
    scene("protocol", "EPOCH", "WRITES=4", optimized=True),
    scene("protocol", "EPOCH", "HOLDERS=3", "WRITES=1", optimized=True),
    scene("protocol", "HOLDERS=3", "WRITES=1", optimized=True),
    scene("grants", "TRIES=3", optimized=True),
    scene("replace", "REPLACING=5"),
    scene("scope", "WRITERS=4"),
    scene("idempotent", "THREE"),
    scene("failover", "THREE"),
    scene("source", "TRIES=4"),
)
"""Sizes for a run by hand: minutes, and gigabytes."""
