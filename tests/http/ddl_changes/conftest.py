"""A gateway that is notified of changes, and one that is not."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.http.conftest import StartGateway
from tests.http.ddl_changes.scene import Scene
from tests.support.asking import Api
from tests.support.interleave import Connection

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually

LISTENERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE application_name = 'fencepost listener' AND datname = current_database()"""


LISTENING = """
SELECT count(*) FROM pg_stat_activity
 WHERE application_name = 'fencepost listener' AND datname = current_database() AND query ILIKE 'listen%'"""


@pytest.fixture
async def notified(database: str, start_gateway: StartGateway) -> AsyncIterator[Scene]:
    """A gateway on a small protected table."""
    owner = await asyncpg.connect(database)
    await owner.execute("SET search_path = public")
    await owner.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)"
    )
    await protect(owner, "t")
    await owner.execute("CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain VALUES (1, 'x')")
    async with Api.open(await start_gateway(database, serve_unprotected=True)) as api:
        assert (await api.ask("GET", "data/t")).status_code == 200
        yield Scene(api, owner, database)
    await owner.close()


@pytest.fixture
async def scene(notified: Scene) -> Scene:
    """The same, with a gateway that gets no notification: what it sees, it sees by itself."""
    await _cut_off_notifications(notified.owner, notified.dsn)
    return notified


async def _cut_off_notifications(owner: Connection, database: str) -> None:
    """End the gateway's listening connection, and let the database take no new ones: it cannot listen again."""
    name = database.rpartition("/")[2]

    async def listening() -> bool:
        return bool(await owner.fetchval(LISTENING))

    await eventually(listening, what="the gateway listening")
    outside = await asyncpg.connect(in_database(database, "postgres"))
    await outside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await outside.close()
    await owner.fetchval(LISTENERS)

    async def gone() -> bool:
        return not await owner.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost listener' AND datname = $1", name
        )

    await eventually(gone, what="the listener's end")
