"""The schema fencepost: protected tables, marks, floors, and the functions that are the rule."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0001_fences.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    # A protected table's triggers call what goes here: refuse, rather than leave tables that nobody can write to.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected) THEN "
            "RAISE EXCEPTION 'unprotect the protected tables first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected); END IF; END $$"
        )
    )
    for function in (
        "prune(text, bigint)",
        "mark_record(text)",
        "mark_without_row(text, text)",
        "floor_of(text)",
        "outdated(text)",
        "suppressed(text)",
        "no_truncate()",
        "judge_delete(text, text, bigint, text, xid)",
        "judge_insert(text, text, bigint, text)",
        "raise_mark(text, bigint, text, boolean)",
        "judge_update(text, text, text, bigint, bigint, boolean, xid)",
        "ours(xid)",
        "refuse(text, bigint, bigint)",
        "given(text)",
        "canon(bytea)",
        "canon(numeric)",
        "canon(timestamptz)",
        "canon(timestamp)",
        "canon(date)",
        "enc(text)",
        "is_builtin(oid)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    for table in ("floors", "marks", "protected"):
        op.execute(f"DROP TABLE fencepost.{table}")
    for function in (
        "never_lower()",
        "lowering(text)",
        "same_key(jsonb, jsonb)",
        "same_texts(text, text)",
        "key_of(oid)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("REVOKE USAGE ON SCHEMA fencepost FROM PUBLIC")
