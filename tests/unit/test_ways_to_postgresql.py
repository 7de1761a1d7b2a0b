"""By which ways the gateway reaches PostgreSQL: what is written goes through `run_write`, or in batches.

Both map errors and answer only when a commit is as safe as PostgreSQL makes it; who lent a connection for itself could
forget that.
"""

import ast
from functools import cache

import pytest
from tests.unit.test_docs_names import ROOT

SERVER = ROOT / "app/fencepost/server"
CALLS = {
    "for_writing": set(),
    "for_leases": set(),
    "batch_connection": {"postgres/group_commit.py"},
    "require_replicated": {"postgres/database.py", "postgres/group_commit.py"},
    "connect": {
        "postgres/connection.py",  # of the pools, and checks before the start
        "postgres/listen.py",
        "queues/postgres.py",  # listens, too
        "ops/demo.py",  # before the start
        "ops/doctor.py",  # doctor and status
        "ops/migrate.py",  # SQLAlchemy's, for alembic
        "locks/advisory.py",  # a lock service, maybe in another database
    },
}


@cache
def _called() -> dict[str, set[str]]:
    """The names of methods that the gateway calls, and in which of its files: all are read once."""
    found: dict[str, set[str]] = {}
    for path in SERVER.rglob("*.py"):
        file = str(path.relative_to(SERVER))
        for node in ast.walk(ast.parse(path.read_text("utf-8"), file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found.setdefault(node.func.attr, set()).add(file)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_only_these_call(name: str) -> None:
    found = _called().get(name, set())
    assert found == CALLS[name], "what writes is handed to run_write (postgres/database.py)"
