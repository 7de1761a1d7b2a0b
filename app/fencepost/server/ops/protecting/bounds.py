"""The bounds of a table's tokens in its functions, as text (R12, R19): compared in the writer's own function, and
bounds.sql is called only to raise. A table that is pinned to a source asks whether the token was issued, and in the
present generation; one of an external source compares it with the table's ceiling.
"""

from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.token import EXTERNAL, Ceiling
from fencepost.server.postgres.row_sql import issued_by, oldest_of, require_issued

# SQL that runs inside other people's sessions names its operators in full, against their search_path.
_GT: Final = "OPERATOR(pg_catalog.>)"
_LT: Final = "OPERATOR(pg_catalog.<)"
_MINUS: Final = "OPERATOR(pg_catalog.-)"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Writes the bounds of one table. `table`: its name, a literal. `ceiling`: None for a source but the external."""

    table: str
    source: str
    ceiling: Ceiling | None

    def issued(self, resource: str, token: str) -> str:
        """Refuse a token that was never issued, or in an earlier generation; nothing for an external source."""
        if self.source == EXTERNAL:
            return ""
        return f"\n  {self.require_issued(resource, token)}\n  {self.require_current(resource, token)}"

    def beyond(self, token: str, mark: str) -> str:
        """Compare a token with the ceiling, above a mark: constants, in the writer's own function."""
        if self.ceiling is None:
            raise ValueError(f"{self.source} is no source with a ceiling")
        jump = self.ceiling.max_jump
        leap = "" if jump is None else f" OR {token} {_MINUS} {mark} {_GT} '{jump}'::pg_catalog.int8"
        return f"{token} {_GT} '{self.ceiling.max_token}'::pg_catalog.int8{leap}"

    def _arguments(self) -> str:
        if self.ceiling is None:
            raise ValueError(f"{self.source} is no source with a ceiling")
        jump = "NULL" if self.ceiling.max_jump is None else f"'{self.ceiling.max_jump}'"
        return f"'{self.ceiling.max_token}', {jump}"

    def require_reach(self, resource: str, token: str, mark: str, by: str = "require_reach") -> str:
        """Refuse a token above the ceiling. After the mark, whose refusal is more exact where both refuse."""
        return f"""IF {self.beyond(token, mark)} THEN
    PERFORM fencepost.{by}({self.table}, {resource}, {token}, {mark}, {self._arguments()});
  END IF;"""

    def meet_ceiling(self, resource: str, token: str) -> str:
        """The same for a row that was inserted: what it raises is in fencepost.marks, or nowhere."""
        if self.ceiling is None:
            return ""
        return f"""
  IF {self.beyond(token, "0")} THEN
    PERFORM fencepost.meet_ceiling({self.table}, {resource}, {token}, {self._arguments()});
  END IF;"""

    def require_issued(self, resource: str, token: str) -> str:
        """Refuse a token that was never issued. After the mark, whose refusal is more exact where both refuse."""
        # Its SET clause costs more than the comparison: asked only when it will raise.
        return f"""IF {token} {_GT} {issued_by(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""

    def require_current(self, resource: str, token: str) -> str:
        """Refuse a token of an earlier generation (R19). After issued(), which locks the sequence: see oldest()."""
        return f"""IF {token} {_LT} {oldest_of(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""
