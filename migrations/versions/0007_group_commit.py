"""Group commit: scopes (R8) and Idempotency-Keys (R16) of several operations that share a transaction."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0007_group_commit.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    for function in (
        "idem_record_each(text, text[], bytea[], integer[], text[], bytea[])",
        "idem_begin_each(text, text[], bytea[])",
        "enter_each(text, text[], bigint[], oid, text)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
