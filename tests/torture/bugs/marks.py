"""Bugs of the SQL that judges tokens and keeps marks (migrations/schema, ops/protecting)."""

from typing import Final

from tests.torture.bugs.settings import ROWS
from tests.torture.planted import Line, Planted

JUDGE_DELETE: Final = "fencepost.judge_delete(text, text, bigint, text, xid)"
JUDGE_INSERT: Final = "fencepost.judge_insert(text, text, bigint, text)"
JUDGE_UPDATE: Final = "fencepost.judge_update(text, text, text, bigint, bigint, boolean, xid)"
RAISE_MARK: Final = "fencepost.raise_mark(text, bigint, text, boolean)"
ENTER: Final = "fencepost.enter(text, text[], bigint, oid, text)"
ENTER_EACH: Final = "fencepost.enter_each(text, text[], bigint[], oid, text)"

NO_TRIGGER: Final = Line(
    JUDGE_UPDATE,
    "IF verdict <> 'accepted'",
    "IF token IS NOT NULL THEN RETURN token; ELSIF verdict <> 'accepted'",
)
"""An UPDATE's trigger is a second line of defence behind the gateway's statement. With this it lets all tokens pass."""
_ACCEPTS: Final = (
    "CREATE OR REPLACE FUNCTION fencepost.accepts(rule text, mark bigint, token bigint) RETURNS boolean LANGUAGE sql"
    " IMMUTABLE PARALLEL SAFE RETURN {}"
)

BUGS: Final = [
    Planted("`<=` for `<` in fencepost.accepts", "register", ROWS, statements=(_ACCEPTS.format("mark <= token"),)),
    Planted(
        "DELETE leaves no mark",
        "register",
        ROWS,
        lines=(
            Line(JUDGE_DELETE, "INSERT INTO fencepost.marks AS k", "RETURN given; INSERT INTO fencepost.marks AS k"),
        ),
    ),
    Planted(
        "DELETE leaves the mark that the row had, and not its own token",
        "register",
        ROWS,
        lines=(Line(JUDGE_DELETE, "VALUES (p_resource, token,", "VALUES (p_resource, greatest(old_mark, 1),"),),
    ),
    Planted(
        "INSERT does not ask for the mark that outlived the row",
        "register",
        ROWS,
        lines=(Line(JUDGE_INSERT, "IF mark IS NULL THEN", "IF true THEN"),),
    ),
    Planted(
        "marks of deleted rows are forgotten, and no floor is raised",
        "register",
        ROWS,
        lines=(
            Line(RAISE_MARK, "INSERT INTO fencepost.marks AS k",
                 "DELETE FROM fencepost.marks k WHERE k.row_absent AND k.ctid IN (SELECT m.ctid FROM fencepost.marks m"
                 " WHERE m.row_absent AND m.changed_at < clock_timestamp() - interval '20 ms' FOR UPDATE SKIP LOCKED);"
                 " INSERT INTO fencepost.marks AS k"),
        ),
    ),
    Planted(
        "a scope is entered, and its mark is not raised",
        "register",
        ROWS,
        lines=(
            Line(ENTER_EACH, "SET last_fence_token = x.token,", "SET last_fence_token = k.last_fence_token,"),
        ),
    ),
]  # fmt: skip
