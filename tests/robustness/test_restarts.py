"""PostgreSQL crashes and comes back, the gateway is killed and started again, while many write (R15).

A 2xx is durable, a refusal had no effect, and the SDK finds out the rest by itself.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.robustness.cuts import AUDIT, SCHEMA, TABLE, TABLES, Writers, judge
from tests.support.gateways import gateway_process
from tests.support.postgres import server_bin_dir
from tests.support.violations import assert_none

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, new_directory, remove_directory

pytestmark = pytest.mark.long("crashes and restores of PostgreSQL")

WITHIN = 4 * PATIENCE  # seconds, of which it takes about twenty


@dataclass
class Crashing:
    """A server that can crash."""

    postgres: PostgresServer
    directory: Path

    def crash(self, by: signal.Signals) -> None:
        """End the server without a shutdown, and start it again on what it had written."""
        pid = int((self.directory / "pgdata" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, by)
        self.postgres.stop()
        self.postgres.start()


@asynccontextmanager
async def server(bin_dir: Path) -> AsyncIterator[Crashing]:
    """Run a server of the test's own, with the audited tables."""
    directory = new_directory()
    postgres = PostgresServer(bin_dir=bin_dir, data_dir=directory, port=free_port(), options={"shared_buffers": "16MB"})
    try:
        postgres.start()
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("CREATE DATABASE shop")
        await connection.close()
        dsn = in_database(postgres.url, "shop")
        await upgrade(dsn)
        connection = await asyncpg.connect(dsn)
        await connection.execute(SCHEMA)
        for table, rule in TABLES.items():
            await connection.execute(TABLE.format(table))
            await protect(connection, table, rule="epoch" if rule == "epoch" else "strict")
            await connection.execute(AUDIT.format(table))
        await connection.close()
        yield Crashing(postgres, directory)
    finally:
        postgres.stop()
        remove_directory(directory)


@pytest.mark.parametrize("server_name", ["embedded-18", "debian-15"])
async def test_crashes_of_postgresql_and_of_the_gateway_lose_nothing_and_double_nothing(
    server_name: str, short_dir: Path, seed: int
) -> None:
    async with asyncio.timeout(WITHIN), server(server_bin_dir(server_name)) as crashing:
        dsn = in_database(crashing.postgres.url, "shop")
        async with gateway_process(dsn, short_dir) as gateway:
            over = asyncio.Event()
            writers = Writers(gateway.url, seed, over.is_set)
            writing = asyncio.create_task(writers.write(with_sdk=4, by_hand=4))

            async def more(count: int = 100) -> None:
                wanted = writers.accepted + count

                async def written() -> bool:
                    assert not writing.done(), writing.result()
                    return writers.accepted >= wanted

                await eventually(written, what=f"{count} more writes {writers.answers}")

            await more()
            for by in (signal.SIGQUIT, signal.SIGKILL):
                crashing.crash(by)  # with requests under way, whose answers wait meanwhile
                await more()
                gateway.crash()
                gateway.start()
                await gateway.serves()
                await more()
            over.set()
            await writing
        connection = await asyncpg.connect(dsn)
        wrong = await judge(connection, writers)
        await connection.close()
    assert_none(wrong, f"FENCEPOST_STORM_SEED={seed} {dict(writers.answers)}")
