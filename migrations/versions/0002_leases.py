"""Locks, leases and tokens: the built-in token source."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0002_leases.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    # The triggers of a table with the built-in source call what goes here.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected WHERE source = 'builtin') THEN "
            "RAISE EXCEPTION 'protect these tables with --source external first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected WHERE source = 'builtin'); END IF; END $$"
        )
    )
    for function in (
        "lock_counts()",
        "lock_states(text, text, integer)",
        "lost(bigint)",
        "issued_to(bigint)",
        "lease(bigint)",
        "forget(double precision, bigint)",
        "sweep()",
        "begin_now(bigint)",
        "retire(uuid)",
        "beat(uuid, uuid[], uuid[])",
        "leave(uuid, integer)",
        "release(bigint, bytea, uuid)",
        "extend(bigint, bytea, integer, integer)",
        "acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer)",
        "wake(text[], uuid)",
        "head(text)",
        "within_ttl(timestamptz, integer)",
        "issue_beyond(bigint)",
        "require_issued(text, bigint)",
        "issued()",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("DROP TYPE fencepost.acquired")
    op.execute("DROP VIEW fencepost.live_waiters")
    for table in ("waiters", "gateways", "draws", "leases", "locks"):
        op.execute(f"DROP TABLE fencepost.{table}")
    for sequence in ("tickets", "tokens"):
        op.execute(f"DROP SEQUENCE fencepost.{sequence}")
