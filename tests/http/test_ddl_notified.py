"""DDL that the gateway is notified of: NOTIFY fencepost, 'reload' and SIGHUP, before any request meets it."""

import asyncio
import os
import signal
from pathlib import Path

import asyncpg
import httpx
from tests.http.conftest import StartGateway
from tests.support.serving import launch

from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.testing.servers.waiting import PATIENCE, eventually


async def tables(client: httpx.AsyncClient) -> str:
    """What /readyz shows of the catalog; asking it loads nothing."""
    return str((await client.get("/readyz")).json()["catalog"]).partition(", ")[2]


async def test_notify_reloads_the_catalog(demo_database: str, start_gateway: StartGateway) -> None:
    owner = await asyncpg.connect(demo_database)
    try:
        async with httpx.AsyncClient(base_url=await start_gateway(demo_database), trust_env=False) as client:
            before = await tables(client)
            await owner.execute("CREATE TABLE public.fresh (id int PRIMARY KEY)")
            await owner.execute("NOTIFY fencepost, 'reload'")

            async def seen() -> bool:
                return await tables(client) != before

            await eventually(seen, what="the new table")
            await protect(owner, "fresh")

            async def protected() -> bool:
                return 'fencepost_tables{protected="yes"} 2.0' in (await client.get("/metrics")).text

            await eventually(protected, what="the protected table")
            await unprotect(owner, "fresh")

            async def unprotected() -> bool:
                return 'fencepost_tables{protected="yes"} 1.0' in (await client.get("/metrics")).text

            await eventually(unprotected, what="the unprotected table")
    finally:
        await owner.close()


async def test_a_lost_listener_comes_back_and_looks(demo_database: str, start_gateway: StartGateway) -> None:
    owner = await asyncpg.connect(demo_database)
    try:
        async with httpx.AsyncClient(base_url=await start_gateway(demo_database), trust_env=False) as client:
            before = await tables(client)

            async def ended() -> bool:
                return bool(
                    await owner.fetchval(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                        " WHERE application_name = 'fencepost listener' AND datname = current_database()"
                    )
                )

            await eventually(ended, what="a listener to end")
            await owner.execute("CREATE TABLE public.fresh (id int PRIMARY KEY)")

            async def seen() -> bool:
                return await tables(client) != before

            await eventually(seen, what="the table made while no connection listened")
            assert "fencepost_listener_losses_total 1.0" in (await client.get("/metrics")).text
    finally:
        await owner.close()


async def test_sighup_reloads_the_catalog(demo_database: str, short_dir: Path) -> None:
    process = launch("--port", "0", errors=short_dir / "stderr", FENCEPOST_DATABASE_URL=demo_database)
    owner = await asyncpg.connect(demo_database)
    try:
        assert process.stdout is not None
        greeting = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 2 * PATIENCE)
        url = greeting.split()[-1]
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            before = await tables(client)
            await owner.execute("CREATE TABLE public.fresh (id int PRIMARY KEY)")
            assert await tables(client) == before
            os.kill(process.pid, signal.SIGHUP)

            async def seen() -> bool:
                return await tables(client) != before

            await eventually(seen, what="the new table")
            assert process.poll() is None
    finally:
        await owner.close()
        process.terminate()
        process.communicate(timeout=PATIENCE)
