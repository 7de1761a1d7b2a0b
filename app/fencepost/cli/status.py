"""`fencepost status` and `fencepost doctor`."""

import asyncpg
import click

from fencepost.settings import Settings
from fencepost.storage import inspect
from fencepost.storage.inspect import Finding, Protected

from .database import on_database
from .options import settings_options

_HEADER = ("TABLE", "RULE", "SOURCE", "KEY", "ROWS", "MARKS", "SINCE")
_SIGNS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


@click.command()
@settings_options("database_url", "data_dir")
def status(settings: Settings) -> None:
    """Say what is protected, and how.

    ROWS is the planner's estimate; MARKS counts keys that have a mark and no row (deleted, or claimed before they
    existed).
    """

    async def look(connection: asyncpg.Connection) -> tuple[list[Protected], list[str]]:
        return await inspect.protected_tables(connection), await inspect.unprotected_tables(connection)

    protected, unprotected = on_database(settings, look)
    lines = [(p.name, p.rule, p.source, ",".join(p.key), str(p.rows), str(p.marks), p.since) for p in protected]
    if lines:
        widths = [max(len(line[n]) for line in [_HEADER, *lines]) for n in range(len(_HEADER))]
        for line in [_HEADER, *lines]:
            click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    else:
        click.echo("no table is protected: fencepost protect TABLE")
    if unprotected:
        click.echo(f"not protected: {', '.join(unprotected)}")


@click.command()
@settings_options("database_url", "data_dir")
def doctor(settings: Settings) -> None:
    """Say what is amiss: server, schema, and every protected table. Exit code 1 when there is an error."""

    async def look(connection: asyncpg.Connection) -> list[Finding]:
        findings = await inspect.examine_server(connection)
        if all(finding.subject != "schema" or finding.level == "ok" for finding in findings):
            findings += await inspect.examine_tables(connection)
            findings += await inspect.examine_privileges(connection)
        return findings

    findings = on_database(settings, look, migrated=False)
    for finding in findings:
        click.echo(f"{_SIGNS[finding.level]}  {finding.subject}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(1)
