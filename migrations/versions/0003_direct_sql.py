"""Direct SQL: break-glass, and what else the triggers need to judge everybody."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0003_direct_sql.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    op.execute("ALTER TABLE fencepost.protected DROP COLUMN scope, DROP COLUMN requires_key")
