"""Waiting until a lock is free."""

from fencepost import Client
from fencepost.testing.servers.processes import eventually


async def lock_is_free(client: Client, name: str) -> None:
    """Return when no client holds the lock or waits for it."""

    async def idle() -> bool:
        return await client.locks(name) == []

    await eventually(idle, what=f"{name} being free")
