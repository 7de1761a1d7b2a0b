"""What `fencepost doctor` finds about seals: tables that want them, and whether the keys here can be read."""

from typing import Final

import asyncpg

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.seal_wiring import read_seal_keys
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

_SEALED: Final = "SELECT p.name FROM fencepost.protected p WHERE p.sealed ORDER BY p.name"
"""It reads what each role may read, and takes no lock on a table of the user's."""


async def examine_seals(connection: asyncpg.Connection, settings: Settings) -> list[Finding]:
    """Look at the keys, and at the tables that take sealed tokens only."""
    sealed = [row["name"] for row in await connection.fetch(_SEALED)]
    named = ", ".join(sealed)
    try:
        keys = read_seal_keys(settings)
    except StartupError as error:
        return [Finding("error", "seals", str(error))]
    if keys is None:
        if not sealed:
            return []
        return [
            Finding(
                "error",
                "seals",
                f"{named} takes sealed tokens only, and FENCEPOST_SEAL_KEYS_FILE names no keys here: a gateway without"
                " them refuses each write to it",
            )
        ]
    of_keys = f"{keys.first} seals, {', '.join(keys.keys)} verify"
    return [Finding("ok", "seals", f"{of_keys}; sealed: {named or 'no table'}")]
