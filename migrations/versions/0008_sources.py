"""Token sources beside the built-in one: registered, quarantined, and the leases that they granted (R12)."""

from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    for statement in (SQL / "0008_sources.sql").read_text("utf-8").split("\n-- next\n"):
        # text() would take `:name` for a parameter.
        op.execute(text(statement.strip().removesuffix(";").replace(":", "\\:")))


def downgrade() -> None:
    # The triggers of a table with such a source call what goes here.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected WHERE source NOT IN ('builtin', 'external')) THEN "
            "RAISE EXCEPTION 'protect these tables with --source external first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected WHERE source NOT IN ('builtin', 'external')); "
            "END IF; END $$"
        )
    )
    for event_function in ("on_dropped()", "on_partitions()"):
        op.execute(f"DROP FUNCTION fencepost.{event_function} CASCADE")  # and its event trigger, a superuser's
    for function in (
        "require_no_default()",
        "other_defaults(oid)",
        "follow_partitions(text)",
        "any_filled(regclass[])",
        "act_for(regclass)",
        "let_go(regclass, regclass, text, bigint)",
        "take_in(regclass, regclass, text, bigint, bigint, text)",
        "as_row_of(regclass)",
        "partitions_known(regclass)",
        "leave_marks(regclass, text[], bigint[])",
        "altered_marks(regclass)",
        "altered()",
        "partitions_unknown(oid)",
        "partitions_of(oid)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    op.execute("ALTER TABLE fencepost.protected DROP COLUMN partitions")
    op.execute("DROP TRIGGER raise_sources ON fencepost.generations")
    op.execute("ALTER TABLE fencepost.protected DROP COLUMN verify")
    # As they were before there were other sources.
    for script, function in (("0004_scopes.sql", "enter"), ("0007_group_commit.sql", "enter_each")):
        for statement in (SQL / script).read_text("utf-8").split("\n-- next\n"):
            if f"CREATE FUNCTION fencepost.{function}(" in statement:
                replaced = statement.strip().removesuffix(";").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
                op.execute(text(replaced.replace(":", "\\:")))
    for function in (
        "compatible_from()",
        "source_beyond(text, bigint, boolean)",
        "raise_sources_of_ours()",
        "source_forget(double precision, integer)",
        "source_raise(text, text, bigint)",
        "source_verified(text, bigint)",
        "source_lock_states(text, text, text, integer)",
        "source_lost(text, bigint)",
        "source_issued_to(text, bigint)",
        "source_over(bigint[])",
        "source_count_anew(bigint[])",
        "source_end(bigint, boolean)",
        "source_minted(bigint, bytea, bigint[], bigint, bigint)",
        "source_renewed(bigint, bytea, integer, integer)",
        "source_lease(text, bigint, bytea)",
        "source_claimed(bigint, bigint[])",
        "source_claiming(bigint)",
        "source_hold(text, bigint, bytea)",
        "source_freeze(text, text)",
        "source_grant(text, text, bytea, text, text[], text, bigint[], bigint, bigint, integer, integer)",
        "source_draw(text, bigint, integer)",
        "source_repeated(bytea)",
        "source_state(text, text)",
        "source_register(text, text, text, boolean)",
        "require_issued(text, bigint, text)",
        "source_begins(text, bigint, bigint)",
        "source_reaches(text, bigint)",
        "source_bounds(text)",
        "issued(text)",
        "oldest(text)",
    ):
        op.execute(f"DROP FUNCTION fencepost.{function}")
    # And with the sources their sequences.
    for table in ("source_log", "source_draws", "source_leases", "sources"):
        op.execute(f"DROP TABLE fencepost.{table}")
