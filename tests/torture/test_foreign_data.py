"""A run in a database that others use touches none of their leases, sources and tables."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from tests.torture.conftest import assert_ended_well

from fencepost.cli.main import main
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.postgres import Databases
from fencepost.testing.torture.holders import HolderDatabase

LEASE = """
INSERT INTO fencepost.leases
VALUES (7, 7, 'x', ARRAY[%s], 'another program', '{}', 60000, 7, now(), now() + interval '1 min')
"""
IS_OVER = "SELECT expires_at < now() FROM fencepost.leases WHERE lease_id = 7"
STATE = "SELECT last_value, is_called FROM fencepost.tokens_postgres_advisory"
TABLES = "SELECT count(*) FROM pg_class WHERE relname LIKE 'torture%%' AND relkind = 'r'"


def torture(*arguments: str, out: Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["torture", "--out", str(out), *arguments])
    return done.exit_code, done.output


@pytest.fixture
def another_database(databases: Databases) -> Iterator[str]:
    """Give a migrated database that no gateway serves."""
    name = databases.make()
    yield name
    databases.drop(name)


@pytest.mark.parametrize(("lock", "over"), [("orders/7", False), ("torture_1/mutex/0", True)])
async def test_a_holder_ends_leases_of_its_own_run_only(lock: str, over: bool, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(LEASE, (lock,))
        ours = HolderDatabase(database, "torture_1")
        await ours.expire("7")
        await ours.close()
        assert connection.execute(IS_OVER).fetchone() == (over,)


def test_the_database_must_be_the_gateways_also_without_tables(
    database: str, another_database: str, tmp_path: Path
) -> None:
    with GatewayServer(database, tmp_path / "gateway.log") as gateway:
        given = ["--url", gateway.url, "--database-url", another_database, "--workload", "mutex", "--ops", "50"]
        code, output = torture(*given, out=tmp_path / "out")
    assert code == 2, output
    assert "is that the gateway's database" in output
    with psycopg.connect(another_database) as connection:
        assert connection.execute(TABLES).fetchone() == (0,)


@pytest.mark.long("torture")
def test_a_source_of_another_program_is_left_alone(database: str, tmp_path: Path) -> None:
    settings = {"FENCEPOST_SOURCES": "postgres_advisory=postgres-advisory:"}
    with GatewayServer(database, tmp_path / "gateway.log", settings=settings):
        pass  # the source is registered
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT setval('fencepost.tokens_postgres_advisory', 100000)")
        given = ["--source", "postgres-advisory", "--gateways", "1", "--ops", "50", "--faults", "none"]
        code, output = torture("--database-url", database, *given, out=tmp_path / "out")
        assert_ended_well(code, output)
        assert connection.execute(STATE).fetchone() == (100000, True)
