"""Generations: which database this is, and since when (R19); pruning of marks (R6)."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0006_generations.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    # The triggers of a table with the built-in source ask for the oldest token of the generation.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected WHERE source = 'builtin') THEN "
            "RAISE EXCEPTION 'protect these tables with --source external first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected WHERE source = 'builtin'); END IF; END $$"
        )
    )
    for statement in (SQL / "0002_leases.sql").read_text("utf-8").split("\n-- next\n"):
        for function in ("issued()", "require_issued("):
            if f"\nCREATE FUNCTION fencepost.{function}" in "\n" + statement:
                before = statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
                op.execute(text(before.strip().removesuffix(";").replace(":", "\\:")))
    for function in (
        "sizes()",
        "prune_marks(bigint, xid8, double precision, text, integer)",
        "prune_horizon()",
        "raise_generation(text, bigint)",
        "oldest()",
        "origin()",
        "here()",
        "current_timeline()",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("DROP TABLE fencepost.generations")
