"""`fencepost fence`: marks, as an operator mends them."""

import asyncpg
import click

from fencepost.cli.database import on_database
from fencepost.cli.options import settings_options
from fencepost.server.fence.token import MAX_TOKEN
from fencepost.server.postgres.upkeep.reset import LOCK_TIMEOUT, Reset, ResetError
from fencepost.server.postgres.upkeep.reset import reset as lower
from fencepost.server.settings import Settings

_LOCK_NOT_AVAILABLE = "55P03"


@click.group()
@settings_options("database_url", "data_dir")
@click.pass_context
def fence(context: click.Context, settings: Settings) -> None:
    """Mend the mark of a resource: see `fencepost fence reset --help`."""
    context.obj = settings


@fence.command()
@click.argument("resource")
@click.option(
    "--to",
    type=click.IntRange(1, MAX_TOKEN),
    metavar="N",
    help="The new mark: the newest token that the lock service has given out. Left out where the table's source knows "
    "it (builtin, or a source in FENCEPOST_SOURCES).",
)
@click.option("--reason", required=True, help="Why: it is recorded in fencepost.break_glass_log, with both marks.")
@click.pass_obj
def reset(settings: Settings, resource: str, to: int | None, reason: str) -> None:
    """Lower the mark of RESOURCE, which was set to a number that no lock service counts to.

    RESOURCE is a row or a key without one (orders/order-123), a scope (account/42), or the name of a table or scope
    (orders), for the floor under all its keys. It needs the privilege to break the glass. It waits for writes under
    way. Tokens up to the new mark are refused from then on: their holders acquire the lock anew.
    """
    if not reason.strip():
        raise click.BadParameter("a reason is needed, not blanks", param_hint="--reason")

    async def act(connection: asyncpg.Connection) -> Reset:
        try:
            return await lower(connection, resource, to, reason)
        except ResetError as error:
            raise click.ClickException(f"{error}") from error
        except asyncpg.PostgresError as error:
            if error.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            raise click.ClickException(
                f"a write under way did not end within {LOCK_TIMEOUT} (see pg_stat_activity, and pg_prepared_xacts);"
                " nothing was changed"
            ) from error

    done = on_database(settings, act)
    click.echo(
        f"{done.resource}: its mark was {done.old} and is {done.new} now, which is recorded. Tokens up to it are"
        " refused: their holders acquire the lock anew."
    )
