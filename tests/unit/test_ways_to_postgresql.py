"""By which ways the gateway reaches PostgreSQL: what is written goes through `run_write`, or in batches.

Both map errors and answer only when a commit is as safe as PostgreSQL makes it; who lent a connection for itself could
forget that.
"""

import ast
from functools import cache

import pytest
from tests.unit.test_docs_names import ROOT

APP = ROOT / "app/fencepost"
PROGRAMS = ("cli", "client", "testing", "torture")
"""They work beside the gateway, and not on its connections."""
CALLS = {
    "for_writing": set(),
    "for_leases": set(),
    "batch_connection": {"storage/batches/group_commit.py"},
    "require_replicated": {"storage/connections/transactions.py", "storage/batches/group_commit.py"},
    "connect": {
        "storage/connections/connection.py",  # of the pools
        "storage/connections/session.py",  # checks before the start
        "storage/connections/listen.py",
        "queues/postgres/waking.py",  # listens, too
        "storage/demo.py",  # before the start
        "storage/inspecting/session.py",  # doctor and status
        "storage/schema/migrate.py",  # SQLAlchemy's, for alembic
        "locks/advisory/session.py",  # a lock service, maybe in another database
    },
}


@cache
def _called() -> dict[str, set[str]]:
    """The names of methods that the gateway calls, and in which of its files: all are read once."""
    found: dict[str, set[str]] = {}
    for path in APP.rglob("*.py"):
        if (file := path.relative_to(APP)).parts[0] not in PROGRAMS:
            for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    found.setdefault(node.func.attr, set()).add(str(file))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_only_these_call(name: str) -> None:
    found = _called().get(name, set())
    assert found == CALLS[name], "what writes is handed to run_write (storage/connections/transactions.py)"
