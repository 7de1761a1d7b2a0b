"""Waiting until a lock is nobody's."""

from tests.support.interleave import eventually

from fencepost import Client


async def nobody_has(client: Client, name: str) -> None:
    """Return when nobody holds the lock, and nobody waits for it."""

    async def idle() -> bool:
        return await client.locks(name) == []

    await eventually(idle, what=f"{name} being free")
