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
    op.execute("SELECT 1")
