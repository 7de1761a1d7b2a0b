"""The tables of a run, whose names only this run has."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["strict", "epoch", "scoped", "blocks", "ledger", "sets", "plain"]

_RULES: Final[dict[Kind, Literal["strict", "epoch"]]] = {"epoch": "epoch"}


@dataclass(frozen=True, slots=True)
class Fenced:
    """A table of this run. `kind`: how it is protected; `plain` is not, for the control without fences."""

    prefix: str
    kind: Kind

    @property
    def name(self) -> str:
        """Its name, in the schema public."""
        return f"{self.prefix}_{self.kind}"

    @property
    def rule(self) -> Literal["strict", "epoch"]:
        """By which rule its marks are compared."""
        return _RULES.get(self.kind, "strict")

    def resource(self, key: str) -> str:
        """What the mark of a row is called."""
        return f"{self.prefix}_scope/{key}" if self.kind == "scoped" else f"{self.name}/{key}"

    def path(self, key: str | None) -> str:
        """Where the gateway has a row of it; None: the table."""
        return f"/v1/data/{self.name}" if key is None else f"/v1/data/{self.name}/{key}"
