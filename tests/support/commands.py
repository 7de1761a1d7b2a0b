"""Commands of `fencepost`, run in this process."""

import asyncio

from click.testing import CliRunner, Result

from fencepost.cli.main import main


async def command(*arguments: str, database: str) -> Result:
    """Run `fencepost ARGUMENTS` on this database."""
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])
