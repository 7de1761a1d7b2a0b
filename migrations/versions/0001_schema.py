"""The schema fencepost, made from the files in migrations/schema as they are now.

A new database gets all of it here. A later revision brings its own change to databases that have an earlier one, and
its change is made in the files, too: on a new database it has nothing to do.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = Path(__file__).parents[1] / "schema"
# In this order: each file needs those before it.
FILES = (
    "protected",  # which tables, and how
    "marks",  # marks and floors, which never fall
    "names",  # names of resources
    "bodies",  # members of bodies that are read otherwise than json_to_record does
    "direct_sql",  # how a token is given
    "break_glass",  # writing without one
    "reset",  # lowering a mark
    "judging",  # the rule
    "bounds",  # which tokens there are
    "scopes",  # one mark for many rows
    "leases",  # locks, leases, tokens of the built-in source
    "waiters",  # those that wait for a lock
    "withdrawn",  # acquires that nobody waits for any more
    "acquire",  # grants
    "next_rows",  # who waits for rows of a table
    "lock_states",  # reading all that
    "generations",  # which database this is
    "sources",  # lock services
    "source_leases",  # what they granted
    "force_release",  # ending a lease in its holder's place
    "idempotency",  # answers to writes with an Idempotency-Key
    "queues",  # logs of writes
    "queue_looks",  # before when all of them is decided
    "queue_results",  # what became of their writes
    "queued",  # the log in this database
    "api_keys",  # who may call the gateway
    "refusals",  # what callers were refused
    "pruning",  # forgetting marks
    "partitions",  # tables that come and go
    "event_triggers",  # what sees them come and go
    "table_functions",  # the functions of one table, as text
    "protection",  # how it is to be protected, and what is in the way
    "protecting",  # what `protect` does to it
    "marks_of_rows",  # which marks its rows then have
    "protect",  # `protect` and `unprotect`
    "sessions",  # what makes a session of the gateway what it was
    "as_gateway",  # what the gateway asks while a caller's role is on
    "versions",  # which versions can work on this
    "grants",  # who may do what
)

_MADE = re.compile(r"^CREATE (TABLE|SEQUENCE|VIEW|TYPE|FUNCTION) (fencepost\.\w+)(\([^$]*?\)(?= |\n))?", re.MULTILINE)
_TRIGGER = re.compile(r"^CREATE TRIGGER (\w+) .*? ON (fencepost\.\w+)", re.MULTILINE)


def statements() -> Iterator[str]:
    """Split the files at each `;` that ends a line outside of a function's body."""
    for name in FILES:
        lines: list[str] = []
        quoted = False
        for line in (SCHEMA / f"{name}.sql").read_text("utf-8").splitlines():
            lines.append(line)
            quoted ^= line.count("$$") % 2 == 1
            if line.endswith(";") and not quoted and not line.startswith("--"):
                yield "\n".join(lines).strip().removesuffix(";")
                lines.clear()


def upgrade() -> None:
    for statement in statements():
        # text() would take `:name` for a parameter.
        op.execute(text(statement.replace(":", "\\:")))
    op.get_context().opts["new"] = True


def downgrade() -> None:
    # A protected table's triggers call what goes here: refuse, rather than leave tables that no statement can write to.
    op.execute(
        text(
            "DO $$ BEGIN IF EXISTS (SELECT FROM fencepost.protected) THEN "
            "RAISE EXCEPTION 'unprotect the protected tables first\\: %', "
            "(SELECT string_agg(name, ', ') FROM fencepost.protected); END IF; END $$"
        )
    )
    for statement in reversed(list(statements())):
        if drop := dropping(statement):
            op.execute(text(drop))
    op.execute("REVOKE USAGE ON SCHEMA fencepost FROM PUBLIC")


def dropping(statement: str) -> str | None:
    """Undo a CREATE, where no later revision's downgrade has. Indexes go with their tables. What is not ours in the
    schema stays, and so does alembic_version.
    """
    if trigger := _TRIGGER.search(statement):
        return f"DROP TRIGGER IF EXISTS {trigger[1]} ON {trigger[2]}"
    if (made := _MADE.search(statement)) is None:
        return None
    kind, name, arguments = made.groups()
    if kind != "FUNCTION":
        return f"DROP {kind} IF EXISTS {name}"
    arguments = re.sub(r" DEFAULT [^,)]+", "", arguments)
    # Its event trigger is a superuser's.
    more = " CASCADE" if "RETURNS event_trigger" in statement else ""
    return f"DROP FUNCTION IF EXISTS {name}{arguments}{more}"
