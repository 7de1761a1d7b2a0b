"""Every statement that requests send for tables of several kinds, compared with tests/statements/sent/: who changes a
statement changes it there too, and looks at each line.

`FENCEPOST_WRITE_STATEMENTS=1 pytest tests/integration/test_statements_sent.py -k embedded` writes the files anew.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.statements.recording import Recorder
from tests.statements.tables import ORDERS, TABLES, Driver, Rows, make
from tests.support.gateways import in_process

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.postgres import clone, in_database, run_on

SENT = Path(__file__).parents[1] / "statements" / "sent"
DATABASE = "statements_sent"


@pytest.fixture(scope="module")
def tables(postgres: PostgresServer, template: str) -> Iterator[str]:
    """Make a database with all tables, each protected, and give its URL."""
    asyncio.run(_make(postgres.url, template))
    yield in_database(postgres.url, DATABASE)
    asyncio.run(run_on(postgres.url, f"DROP DATABASE {DATABASE} WITH (FORCE)"))


async def _make(server: str, template: str) -> None:
    await clone(server, DATABASE, template)
    connection = await asyncpg.connect(in_database(server, DATABASE))
    try:
        await make(connection)
    finally:
        await connection.close()


@pytest.mark.parametrize("rows", TABLES, ids=[rows.path for rows in TABLES])
async def test_what_is_sent_is_what_is_written_down(rows: Rows, tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    async with in_process(tables) as client:
        await recorder.know_oids(tables)
        await Driver(client, recorder, rows).all()
    file = SENT / f"{rows.path}.sql"
    base = "" if rows is ORDERS else (SENT / f"{ORDERS.path}.sql").read_text()
    sent = recorder.text(rows.path, base, rows.options.get("rule", "strict"))
    if os.environ.get("FENCEPOST_WRITE_STATEMENTS"):
        file.write_text(sent)
    assert sent == file.read_text(), f"{file.name} differs: look at each line, then write it anew"
