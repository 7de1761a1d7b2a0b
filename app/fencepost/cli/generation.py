"""`fencepost generation`: on which database writes are allowed, since when, and `raise`, an operator's word for it."""

import asyncpg
import click

from fencepost.cli.database import on_database
from fencepost.cli.options import settings_options
from fencepost.server.fence.token import GENERATION_BITS, GENERATIONS
from fencepost.server.postgres.connections.origin import Origin
from fencepost.server.postgres.upkeep import generations, raising
from fencepost.server.postgres.upkeep.generations import Generation
from fencepost.server.settings import Settings


@click.group(invoke_without_command=True)
@settings_options("database_url", "data_dir")
@click.pass_context
def generation(context: click.Context, settings: Settings) -> None:
    """Show on which system and timeline writes are allowed, since when, and whether the database is that one.

    Exit code 1 when it is not: gateways refuse to write to it until an operator raises the generation.
    """
    context.obj = settings
    if context.invoked_subcommand is not None:
        return

    async def look(connection: asyncpg.Connection) -> tuple[list[Generation], Origin]:
        return await generations.history(connection), await generations.origin(connection)

    known, origin = on_database(settings, look)
    for each in known:
        click.echo(
            f"generation {each.number} ({each.identity}): system {each.system_identifier}, timeline {each.timeline},"
            f" since {each.raised_at} UTC, by {each.raised_by}: {each.reason}"
        )
    error = origin.problem()
    if error is None:
        click.echo(f"this database is {origin.found.describe()}: accepted")
        return
    click.echo(f"REFUSED: {error}")
    if not origin.in_recovery:
        click.echo("when no other primary is alive: fencepost generation raise --reason …")
    raise SystemExit(1)


@generation.command("raise")
@click.option("--reason", required=True, help="Why; it is recorded.")
@click.option(
    "--above",
    type=click.IntRange(0, ((GENERATIONS - 1) << GENERATION_BITS) - 1),
    metavar="TOKEN",
    help="Also above the generation of this token, which another copy of this database has issued: gateways that know"
    " that one go on here.",
)
@click.pass_obj
def raise_(settings: Settings, reason: str, above: int | None) -> None:
    """Vouch for this database: void all tokens and leases that were given out before, and let writes through again.

    For a standby that was promoted, or a backup that was restored. Make sure that the old primary is not alive, or
    cannot be reached: a process that is connected to it goes on writing there. Gateways need no restart.

    When another standby was promoted before, and its generation raised, of which this database knows nothing: --above
    one of its tokens.
    """
    if not reason.strip():
        raise click.BadParameter("a reason is needed, not blanks", param_hint="--reason")

    async def act(connection: asyncpg.Connection) -> tuple[int, Origin, list[str]]:
        try:
            raised = await generations.raise_generation(connection, reason, above)
        except asyncpg.PostgresError as error:
            message = raising.describe_failure(error, "grants or writes under way")
            if message is None:
                raise
            raise click.ClickException(message) from error
        return raised, await generations.origin(connection), await generations.lagging_tables(connection)

    raised, origin, lagging = on_database(settings, act)
    click.echo(
        f"generation {raised}: {origin.found.describe()} is the one to write to."
        f"\nTokens begin at {raised << GENERATION_BITS}; older ones are stale on tables of the built-in source."
        " All leases are over."
        "\nTables of other sources: see to it that their lock service goes on above the tokens that it gave before."
    )
    if lagging:
        click.echo(
            f"WARNING: {', '.join(lagging)}: protected by an older version, which does not know of generations and"
            " takes old tokens: run `fencepost protect` on each"
        )
