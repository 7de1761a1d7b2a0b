"""The Python client with decimals=True: a row that was read is written back, and is what it was."""

from datetime import timedelta

import asyncpg
import httpx
from tests.support.gateways import in_process

from fencepost import Client
from fencepost.server.ops.protect import protect

SEEN = "SELECT (n, f, j, t, i)::text FROM public.v ORDER BY id"


async def test_a_row_that_was_read_is_written_back_as_it_was(database: str) -> None:
    owner = await asyncpg.connect(database)
    await owner.execute("CREATE TABLE public.v (id int PRIMARY KEY, n numeric, f float8, j jsonb, t json, i interval)")
    await owner.execute(
        """INSERT INTO public.v VALUES (1, 12345678901234567890.12345678901234567890, '-0', '{"a": [1.50, 1e400]}',
                                        '{"a":-0}', '1 day 2 seconds'), (2, 'NaN', 'NaN', '"1.5"', '-0.0', NULL)"""
    )
    await protect(owner, "v")
    before = await owner.fetch(SEEN)
    async with in_process(database) as http:
        transport = httpx.ASGITransport(http._transport.app)  # type: ignore[attr-defined]  # noqa: SLF001 - the same gateway
        async with Client("http://localhost", transport=transport, decimals=True) as client:
            for key in (1, 2):
                await client.put("v", key, await client.get("v", key), token=10)
            after = await owner.fetch(SEEN)
            await client.patch("v", 2, {"i": timedelta(1, 2)}, token=20)
    assert (len(before), after) == (2, before)
    assert await owner.fetchval("SELECT i::text FROM public.v WHERE id = 2") == "1 day 00:00:02"
    await owner.close()
