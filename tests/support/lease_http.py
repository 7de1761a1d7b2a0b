"""Gateways over HTTP for the tests of leases, in threads of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from tests.support.live_gateway import serving

from fencepost.server.settings import Settings
from fencepost.testing.servers.processes import PATIENCE


@asynccontextmanager
async def running(dsn: str, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway until the block ends; gives a client of it."""
    gateway = serving(Settings.model_validate({"database_url": dsn, "port": 0, **settings}))
    url = await asyncio.to_thread(gateway.__enter__)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            yield client
    finally:
        await asyncio.to_thread(gateway.__exit__, None, None, None)


async def post(client: httpx.AsyncClient, lock: str, **asked: object) -> httpx.Response:
    """Ask for a lock. `secret` goes where it belongs."""
    secret = asked.pop("secret", None)
    headers = {"X-Lease-Secret": str(secret)} if secret else {}
    return await client.post("/v1/leases", json={"lock": lock, **asked}, headers=headers)


async def release(client: httpx.AsyncClient, lease: dict[str, str]) -> None:
    """Give a lease back."""
    answer = await client.delete(f"/v1/leases/{lease['lease_id']}", headers={"X-Lease-Secret": lease["secret"]})
    assert answer.status_code == 204, answer.text
