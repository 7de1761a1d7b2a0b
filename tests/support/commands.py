"""Commands of `fencepost`, run in this process."""

import asyncio

from click.testing import CliRunner, Result

from fencepost.cli.main import main


async def command(*arguments: str, database: str) -> Result:
    """Run `fencepost ARGUMENTS` on this database."""
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


async def complaints(database: str) -> list[str]:
    """Give the lines of `fencepost doctor` that are not ok. With an error among them it exits with 1."""
    found = await command("doctor", database=database)
    lines = [line for line in found.output.splitlines() if not line.startswith("ok ")]
    assert found.exit_code == (1 if any(line.startswith("ERROR") for line in lines) else 0), found.output
    return lines
