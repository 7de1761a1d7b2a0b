"""`fencepost release --force`: an operator ends a lease in its holder's place."""

from collections.abc import Sequence

import asyncpg
import click

from fencepost.cli.database import on_database
from fencepost.cli.doctor.sources import read_configured_sources
from fencepost.cli.options import settings_options
from fencepost.server.fence.token import BUILTIN
from fencepost.server.locks.source import SourceError
from fencepost.server.postgres.leases.forced import Forced, force_release
from fencepost.server.settings import Settings
from fencepost.server.source_wiring import ConfiguredSource


@click.command()
@settings_options("database_url", "data_dir", "sources", "sources_file")
@click.argument("lock")
@click.option(
    "--force", is_flag=True, required=True, help="Needed: only the holder can release a lease in another way."
)
@click.option("--reason", required=True, help="Why: it is recorded in fencepost.break_glass_log.")
@click.option("--source", default=BUILTIN, show_default=True, help="The token source that the lock is of.")
def release(settings: Settings, lock: str, force: bool, reason: str, source: str) -> None:  # noqa: ARG001 - click requires --force
    """End the lease that holds LOCK, in the place of a holder that is gone or does not let go.

    It needs the privilege to break the glass. All locks of the lease are free then, and the first that waits is granted
    them. The holder is not fenced by this: its tokens are good until a newer one writes, or claims. It learns of it
    when it renews. An election's lock is called election/NAME.
    """
    if not reason.strip():
        raise click.BadParameter("a reason is needed, not blanks", param_hint="--reason")
    configured = () if source == BUILTIN else read_configured_sources(settings)

    async def act(connection: asyncpg.Connection) -> tuple[Forced | None, str | None]:
        ended = await force_release(connection, source, lock, reason)
        if ended is None or ended.handle is None:
            return ended, None
        return ended, await _let_go(configured, source, lock, ended.handle)

    ended, left = on_database(settings, act)
    if ended is None:
        raise click.ClickException(f"no lease of {source} holds {lock}: nothing was ended, and nothing is recorded")
    click.echo(
        f"{', '.join(ended.names)}: the lease of {ended.owner}, granted at {ended.granted_at}, is over, which is"
        " recorded."
        " What it writes is refused once a newer token has written or claimed."
    )
    if left is not None:
        raise click.ClickException(left)


async def _let_go(configured: Sequence[ConfiguredSource], name: str, lock: str, handle: str) -> str | None:
    """End the hold at the lock service; gives what is left to do where that cannot be done here."""
    known = next((each.source for each in configured if each.name == name), None)
    if known is None:
        return f"the lock service {name} is not configured here (--sources): it keeps the lock until its TTL ends"
    await known.open()
    try:
        await known.release(lock, handle)
    except SourceError as error:
        return f"{error}: the lock service keeps the lock until its TTL ends"
    finally:
        await known.close()
    return None
