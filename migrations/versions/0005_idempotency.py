"""Idempotency keys and what was answered under them (R16)."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0005_idempotency.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    for function in (
        "prune_idempotency(double precision, integer)",
        "idem_record(text, text, bytea, integer, text[], bytea)",
        "idem_begin(text, text, bytea)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("DROP TABLE fencepost.idempotency")
