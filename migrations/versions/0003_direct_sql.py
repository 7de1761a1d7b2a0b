"""Direct SQL: break-glass, and what else the triggers need to judge everybody."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"

# The one function of a protected table that calls what goes here, as `protect` wrote it before.
_INSERT_WITHOUT_GLASS = """
DO $$
DECLARE
  t record;
BEGIN
  FOR t IN SELECT p.name, p.functions FROM fencepost.protected p
            WHERE to_regprocedure(format('fencepost.%I()', p.functions || '_ins')) IS NOT NULL LOOP
    EXECUTE format('CREATE OR REPLACE FUNCTION fencepost.%I() RETURNS trigger LANGUAGE plpgsql'
                   ' SET search_path = pg_catalog, pg_temp AS %L', t.functions || '_ins', format($body$
BEGIN
  NEW.last_fence_token := CASE WHEN NEW.last_fence_token <> 0 THEN abs(NEW.last_fence_token)
                            ELSE fencepost.given(%1$L) END;
  IF NEW.last_fence_token IS NULL THEN PERFORM fencepost.refuse(fencepost.%2$I(NEW), NULL, NULL); END IF;
  RETURN NEW;
END $body$, t.name, t.functions || '_name'));
  END LOOP;
END $$
"""


def upgrade() -> None:
    for statement in (SQL / "0003_direct_sql.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    before = (SQL / "0001_fences.sql").read_text("utf-8")
    for function in ("refuse", "raise_mark", "judge_update", "judge_insert", "judge_delete"):
        begin = before.index(f"CREATE FUNCTION fencepost.{function}(")
        body = before[begin : before.index("\n-- next\n", begin)].removesuffix(";")
        op.execute(text(body.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1).replace(":", "\\:")))
    op.execute(text(_INSERT_WITHOUT_GLASS.replace(":", "\\:")))
    op.execute("DROP TABLE fencepost.break_glass_log")
    for function in (
        "append_only()",
        "is_reset(text, bigint, bigint)",
        "reset_mark(text, text, bigint, bigint)",
        "highest_below(text, text, bigint)",
        "held_mark(text, bigint)",
        "held_floor(text)",
        "meet_ceiling(text, text, bigint, bigint, bigint)",
        "require_reach(text, text, bigint, bigint, bigint, bigint)",
        "require_reach_of_row(text, text, bigint, bigint, bigint, bigint)",
        "beyond(text, bigint, bigint, bigint, bigint, bigint)",
        "no_floor(text)",
        "meet_mark(text)",
        "mark_behind_glass(text, text, bigint)",
        "record_break_glass(text, text, text)",
        "break_glass()",
        "may_break_glass()",
        "malformed(text)",
        "note_said(text, bigint)",
        "was_said(text, bigint)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute(
        "ALTER TABLE fencepost.protected DROP COLUMN scope, DROP COLUMN requires_key, DROP COLUMN max_token,"
        " DROP COLUMN max_jump"
    )
