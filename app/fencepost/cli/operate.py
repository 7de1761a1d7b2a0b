"""`fencepost fence reset`, `generation`, `source`, `release`: what an operator does in the place of a holder."""

from collections.abc import Awaitable, Sequence

import asyncpg
import click

from fencepost.cli.shared import on_database, one_line, settings_options
from fencepost.server.fence.token import BUILTIN, GENERATION_BITS, GENERATIONS, MAX_TOKEN
from fencepost.server.locks.source import SourceError
from fencepost.server.parts import ConfiguredSource, read_source, read_sources
from fencepost.server.postgres import sources, upkeep
from fencepost.server.postgres.database_identity import Origin
from fencepost.server.postgres.leases import Forced, force_release
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.upkeep import LOCK_TIMEOUT, Generation, Reset, ResetError
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

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
            return await upkeep.reset(connection, resource, to, reason)
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
        return await upkeep.history(connection), await upkeep.origin(connection)

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
        raised = await _raised(upkeep.raise_generation(connection, reason, above), "grants or writes under way")
        return raised, await upkeep.origin(connection), await upkeep.lagging_tables(connection)

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


async def _raised(raising: Awaitable[int], waits_for: str) -> int:
    """Give the generation that was raised. ClickException where `waits_for` was not over in time."""
    try:
        return await raising
    except asyncpg.PostgresError as error:
        message = upkeep.describe_failure(error, waits_for)
        if message is None:
            raise
        raise click.ClickException(message) from error


# `fencepost source`: the lock services and queues that tokens come from, and `raise`, by which an operator ends a
# quarantine.


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
    with one_line(StartupError):
        configured = read_source(source, "")

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
        return await _raised(sources.raise_source(connection, name, reason, above), f"writes under tokens of {name}")

    raised = on_database(settings, act)
    after = "What waits in it gets tokens of this generation." if is_queue(name) else "All its leases are over."
    click.echo(
        f"{name} is at generation {raised}: its tokens begin at {raised << GENERATION_BITS}, older ones are stale."
        f" {after}"
    )


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
    with one_line(StartupError):
        configured = () if source == BUILTIN else read_sources(settings)

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
