"""Scopes: one mark for all rows that render to the same name (R8)."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0004_scopes.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    # Their triggers call what goes here.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected WHERE scope IS NOT NULL) THEN "
            "RAISE EXCEPTION 'unprotect the tables with a scope first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected WHERE scope IS NOT NULL); END IF; END $$"
        )
    )
    for function in (
        "judge_scope(text, text, text, text)",
        "enter(text, text[], bigint, oid, text)",
        "no_scope(text, text, boolean)",
        "take_name(oid, text)",
        "move_marks(oid, text, text)",
        "copy_marks(text, text)",
        "name_of(oid)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("ALTER TABLE fencepost.floors DROP COLUMN covers_rows, DROP COLUMN relation")
