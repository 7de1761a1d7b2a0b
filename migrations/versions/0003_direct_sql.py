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
    # The triggers' functions stay as they are: what they call and goes here is asked when an INSERT has no token,
    # which then fails for another reason, until `fencepost protect` of the older version makes them anew.
    before = (SQL / "0001_fences.sql").read_text("utf-8")
    for function in ("judge_update", "judge_insert", "judge_delete"):
        begin = before.index(f"CREATE FUNCTION fencepost.{function}(")
        body = before[begin : before.index("\n-- next\n", begin)].removesuffix(";")
        op.execute(text(body.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1).replace(":", "\\:")))
    op.execute("DROP TABLE fencepost.break_glass_log")
    for function in (
        "append_only()",
        "mark_behind_glass(text, text)",
        "record_break_glass(text, text, text)",
        "break_glass()",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("ALTER TABLE fencepost.protected DROP COLUMN scope, DROP COLUMN requires_key")
