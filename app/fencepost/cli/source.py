"""`fencepost source`: the lock services and queues that tokens come from, and `raise`, by which an operator ends a
quarantine.
"""

import asyncpg
import click

from fencepost.cli.database import on_database
from fencepost.cli.options import settings_options
from fencepost.server.fence.token import GENERATION_BITS, GENERATIONS
from fencepost.server.postgres.leases import sources
from fencepost.server.postgres.queues.progress import is_queue
from fencepost.server.postgres.upkeep import raising
from fencepost.server.settings import Settings
from fencepost.server.source_wiring import read_source
from fencepost.server.startup import StartupError


@click.group(invoke_without_command=True)
@settings_options("database_url", "data_dir")
@click.pass_context
def source(context: click.Context, settings: Settings) -> None:
    """List the token sources that were ever configured, how far their tokens got, and which tables take them.

    Exit code 1 when one of them is quarantined.
    """
    context.obj = settings
    if context.invoked_subcommand is not None:
        return
    known = on_database(settings, sources.list_known)
    for each in known:
        tables = ", ".join(each.tables) or "no table"
        click.echo(f"{each.name} ({each.kind}): {each.describe()}; {tables}")
    if not known:
        click.echo("no sources beside the built-in one: fencepost serve --sources NAME=URL")
    if quarantined := [each.name for each in known if each.quarantined is not None]:
        click.echo(f"when it counts on from a number you vouch for: fencepost source raise {quarantined[0]} --reason …")
        raise SystemExit(1)


@source.command()
@click.argument("source", metavar="NAME=URL")
@click.pass_obj
def add(settings: Settings, source: str) -> None:
    """Make a source known, as a gateway does that has it in FENCEPOST_SOURCES: for `protect --source` before that."""
    try:
        configured = read_source(source, "")
    except StartupError as error:
        raise click.ClickException(str(error)) from error

    async def register(connection: asyncpg.Connection) -> None:
        can = configured.source.capabilities
        await sources.register(connection, configured.name, configured.kind, can.order, verifies=can.verifies)

    on_database(settings, register)
    click.echo(f"{configured.name} is known: {configured.kind}")


@source.command("raise")
@click.argument("name")
@click.option("--reason", required=True, help="Why; it is recorded.")
@click.option(
    "--above",
    type=click.IntRange(0, ((GENERATIONS - 1) << GENERATION_BITS) - 1),
    default=0,
    metavar="TOKEN",
    help="Also above this one: a mark of a table that is to be pinned to the source.",
)
@click.pass_obj
def raise_generation(settings: Settings, name: str, reason: str, above: int) -> None:
    """Raise the generation of the source NAME: its tokens go on from above all that were ever given out.

    For a lock service that was restored from a backup, failed over without its last writes, or set up anew. Tokens of
    earlier generations are stale from now on, and leases of the source are over. Writes that are under way end first.
    Gateways need no restart.

    For a queue: its log was made again, got other partitions, or lost messages. What waits in it is applied under
    tokens of the new generation.
    """
    if not reason.strip():
        raise click.BadParameter("a reason is needed, not blanks", param_hint="--reason")

    async def act(connection: asyncpg.Connection) -> int:
        try:
            return await sources.raise_source(connection, name, reason, above)
        except asyncpg.PostgresError as error:
            message = raising.describe_failure(error, f"writes under tokens of {name}")
            if message is None:
                raise
            raise click.ClickException(message) from error

    raised = on_database(settings, act)
    after = "What waits in it gets tokens of this generation." if is_queue(name) else "All its leases are over."
    click.echo(
        f"{name} is at generation {raised}: its tokens begin at {raised << GENERATION_BITS}, older ones are stale."
        f" {after}"
    )
