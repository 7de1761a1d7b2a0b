"""What `fencepost doctor` reports of a database."""

import asyncio

from click.testing import CliRunner, Result
from tests.support.interleave import Connection

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import protect

PROTECTED = {
    "t": "",
    "moods": "",
    "scoped": "--scope account/{account_id}",
    "parts": "--source builtin",
    "scoped_parts": "--scope a/{a} --rule epoch",
}


async def command(*arguments: str, database: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


async def stem(connection: Connection, table: str) -> str:
    found: str = await connection.fetchval("SELECT functions FROM fencepost.protected WHERE name = $1", table)
    return found


async def complaints(database: str) -> list[str]:
    """The lines of doctor that are not ok."""
    found = await command("doctor", database=database)
    lines = [line for line in found.output.splitlines() if not line.startswith("ok ")]
    assert found.exit_code == (1 if any(line.startswith("ERROR") for line in lines) else 0), found.output
    return lines


async def mended(owner: Connection, database: str, *tables: str) -> None:
    for table in tables:
        await protect(owner, table)
    assert await complaints(database) == []
