"""A table whose rows have lost their marks: the column was dropped, or renamed, while the table was protected.

Nothing is written to such a table, for its functions fail. What the marks were is not known, but what is above them: a
source that is known has issued every token that was accepted. Of an external one only an operator can say how far its
tokens have got. All rows take that as their mark, and so does the floor, for the marks of keys that nothing has asked
for since may be gone as well.
"""

import shlex
from typing import Final

from fencepost.server.fence.token import EXTERNAL
from fencepost.server.ops.protecting.check import ProtectError
from fencepost.server.ops.protecting.table import HIGHEST_MARK
from fencepost.server.ops.protecting.target import Target
from fencepost.server.postgres.row_sql import literal
from fencepost.server.postgres.tables import MARK_COLUMN

ABOVE: Final = "--above N"
NOT_LOST: Final = (
    f"{ABOVE} is for a table of an external source that is protected and has lost its column {MARK_COLUMN}; this one"
    " has not."
)


def lost_marks_reason(name: str) -> str:
    """Return what is wrong with the table of this name, and which command mends it: `unprotect` refuses it, too."""
    return (
        f"its marks are lost: the column {MARK_COLUMN} is gone. Its tokens are of an external source, so it is not"
        f" known how far they have got. When no token up to N may write to it any more, run `fencepost protect"
        f" {shlex.quote(name)} {ABOVE}` (in Alembic: protect(…, above=N)). All rows, and keys without a row, then take"
        " tokens above N only."
    )


def require_marks(target: Target, above: int | None) -> None:
    """Refuse a table whose marks are lost beyond what is known, and a word that is not needed. Raises ProtectError."""
    now = target.registered
    unknown = target.lost and now is not None and now.source == EXTERNAL
    if unknown and above is None:
        raise ProtectError(target.name, [lost_marks_reason(target.name)])
    if above is not None and not unknown:
        raise ProtectError(target.name, [NOT_LOST])
    if above is not None and not 0 < above <= HIGHEST_MARK:
        raise ProtectError(target.name, [f"--above {above}: a token is a positive number, of at most 2^62 here."])


def restore_sql(table: str, name: str, above: int | None = None) -> str:
    """Make the column anew where it is gone from a table whose rows have marks of their own, once the table is locked.
    `table` is its name in SQL, `name` the one that commands take.
    """
    known = "NULL" if above is None else f"'{above}'"
    return f"SELECT fencepost.restore_marks({literal(table)}::regclass, {known}, {literal(lost_marks_reason(name))})"
