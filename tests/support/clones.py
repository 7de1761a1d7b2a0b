"""Databases that are copies of a migrated one: making them so is much quicker than migrating each."""

import asyncpg

ADOPT = "UPDATE fencepost.generations g SET database_oid = h.database_oid FROM fencepost.here() AS h"
"""Take a clone for an original. Gateways refuse clones (R19) until their generation is raised."""


async def clone(server: str, name: str, template: str) -> None:
    """Make the database `name` on a server, with all that the migrated database `template` has."""
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    finally:
        await connection.close()
    connection = await asyncpg.connect(f"{server.rpartition('/')[0]}/{name}")
    try:
        await connection.execute(ADOPT)
    finally:
        await connection.close()
