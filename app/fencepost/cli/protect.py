"""`fencepost protect TABLE` and `fencepost unprotect TABLE`."""

import asyncpg
import click

from fencepost.cli.shared import on_database, settings_options
from fencepost.server.fence.token import EXTERNAL, HIGHEST_TOKEN, MAX_TOKEN, Rule
from fencepost.server.ops.doctor import LOCK_TIMEOUT, examine
from fencepost.server.ops.doctor_tables import TABLES
from fencepost.server.ops.protect import ProtectPlan, apply, plan_protect, plan_unprotect
from fencepost.server.settings import Settings

_SQL = click.option("--sql", is_flag=True, help="Print the DDL instead and touch nothing.")
_WAIT = click.option(
    "--wait", default=30.0, show_default=True, metavar="SECONDS", help="How long to try for the table's lock."
)


@click.command()
@click.argument("table")
@settings_options("database_url", "data_dir")
@click.option(
    "--rule",
    type=click.Choice(["strict", "epoch"]),
    help="strict (default): each token writes a row once. epoch: a token may write again, for lock services that give "
    "one token per grant.",
)
@click.option(
    "--source",
    metavar="NAME",
    help="Where the tokens come from. external (default): any lock service; you vouch that one place mints them. "
    "builtin: Fencepost's own leases. Another name: that of a source in FENCEPOST_SOURCES. A token that the source is "
    "not known to have issued is refused.",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="The table takes all its writes by this queue, and positions in it for tokens: postgres:default, kafka:TOPIC, "
    "redis:STREAM. Instead of --source, --scope, --verify and --max-*.",
)
@click.option(
    "--verify/--no-verify",
    default=None,
    help="The gateway asks the source about tokens of locks that were not taken through it, before a mark is raised.",
)
@click.option(
    "--max-token",
    type=click.IntRange(1, MAX_TOKEN),
    metavar="N",
    help=f"With the source external: the highest token that the table takes. Default {HIGHEST_TOKEN} (2^62 - 1).",
)
@click.option(
    "--max-jump",
    type=click.IntRange(0, MAX_TOKEN),
    metavar="N",
    help="With the source external: how far a token may be above the mark that it raises; that of a new key is 0, or "
    "the table's floor. 0 (default): any distance.",
)
@click.option(
    "--scope",
    metavar="TEMPLATE",
    help="One mark for all rows that render to the same name, in every table with that template: account/{account_id}.",
)
@click.option(
    "--above",
    type=click.IntRange(1),
    metavar="N",
    help="For a table with --source external that has lost its column last_fence_token: no token up to N may write to "
    "it any more. All rows, and keys without a row, then take tokens above N only.",
)
@click.option("--no-scope", is_flag=True, help="Give each row a mark of its own again.")
@click.option(
    "--require-idempotency-key/--no-require-idempotency-key",
    "requires_key",
    default=None,
    help="The gateway refuses writes to this table that carry no Idempotency-Key.",
)
@click.option(
    "--sealed/--no-sealed",
    default=None,
    help="The gateway takes sealed tokens only, and only for what their seals are bound to (FENCEPOST_SEAL_KEYS_FILE).",
)
@_SQL
@_WAIT
def protect(  # noqa: PLR0913, PLR0917 - one for each option
    table: str,
    settings: Settings,
    rule: Rule | None,
    source: str | None,
    queue: str | None,
    verify: bool | None,
    above: int | None,
    max_token: int | None,
    max_jump: int | None,
    scope: str | None,
    no_scope: bool,
    requires_key: bool | None,
    sealed: bool | None,
    sql: bool,
    wait: float,
) -> None:
    """Protect TABLE: from now on every write to it needs a fencing token.

    Adds the column last_fence_token, its check and triggers. No row is rewritten, and the table is locked for
    milliseconds. Repeating it changes nothing; with another option it changes that one. A table with marks
    that becomes builtin is read once under its lock: the leases' tokens go on from above its highest mark.
    """
    if no_scope and scope is not None:
        raise click.UsageError("--scope and --no-scope exclude each other.")
    chosen = "" if no_scope else scope

    async def plan(connection: asyncpg.Connection) -> str:
        made = await plan_protect(
            connection, table, rule, source, requires_key, chosen, verify, above, max_token, max_jump, queue, sealed
        )
        if sql:
            return made.script()
        before = await _protection(connection, made.name)
        await apply(connection, made, wait=wait)
        await _warn(connection, made.name)
        return _said(made.name, before, await _protection(connection, made.name) or {})

    click.echo(on_database(settings, plan), nl=False)


async def _protection(connection: asyncpg.Connection, name: str) -> dict[str, object] | None:
    """Read how a table is protected, by the names of the options; None: it is not."""
    row = await connection.fetchrow(
        "SELECT rule, source, scope, max_token, max_jump, verify, requires_key AS require_idempotency_key, sealed"
        " FROM fencepost.protected WHERE name = $1",
        name,
    )
    return None if row is None else dict(row)


def _said(name: str, before: dict[str, object] | None, after: dict[str, object]) -> str:
    """Say what `protect` has done: what a table has now that had no fence, or what has changed of one that had."""
    source = str(after["source"])
    lines = [f"{name} is protected: writes need {f'to go by {source}' if ':' in source else 'a token'}"]
    if before is None:
        lines += [
            "  column    last_fence_token has a row's mark; rows that were there begin at 0",
            "  triggers  judge direct SQL, too: without a token it is refused from now on (FP428, docs/direct-sql.md)",
            f"  tokens    {_tokens(after)}",
        ]
    else:
        changed = [
            f"{_option(name)} from {_shown(was)} to {_shown(after[name])}"
            for name, was in before.items()
            if was != after[name]
        ]
        stays = [f"{_option(name)} {_shown(was)}" for name, was in before.items() if was and was == after[name]]
        lines += [f"  changed   {', '.join(changed) or 'nothing'}", f"  stays     {', '.join(stays)}"]
    return "\n".join(lines) + "\n"


def _tokens(protection: dict[str, object]) -> str:
    source, most, jump = str(protection["source"]), protection["max_token"], protection["max_jump"]
    if ":" in source:
        return f"the positions in {source}, which consumers give"
    if source != EXTERNAL:
        return f"those of the source {source}, and no others"
    bounds = f"up to {most}" + ("" if jump is None else f", no more than {jump} above the mark")
    if jump is not None or most != HIGHEST_TOKEN:
        return f"of any lock service, {bounds}"
    return (
        f"of any lock service, {bounds}: a made-up 999999999999999 would pass, and bar all that are lower. --max-jump N"
        " bounds how far a token may be above the mark; --source NAME takes those of one lock service only"
    )


def _option(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


async def _warn(connection: asyncpg.Connection, name: str) -> None:
    """Print what `doctor` finds amiss with the table."""
    await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
    try:
        for each in await examine(TABLES, connection):
            if each.subject == name and each.level != "ok":
                click.echo(f"{each.level.upper()}  {name}: {each.text}", err=True)
    except asyncpg.PostgresError as error:  # the table is protected all the same
        click.echo(f"WARNING  {name}: not all was looked at ({error}): run `fencepost doctor`", err=True)


@click.command()
@click.argument("table")
@settings_options("database_url", "data_dir")
@_SQL
@_WAIT
def unprotect(table: str, settings: Settings, sql: bool, wait: float) -> None:
    """Take TABLE's protection away: its triggers and functions.

    The column last_fence_token and the marks stay, so that a later `protect` goes on from them: a mark never falls. To
    be rid of them too, ALTER TABLE … DROP COLUMN last_fence_token.
    """

    async def plan(connection: asyncpg.Connection) -> ProtectPlan:
        made = await plan_unprotect(connection, table)
        if not sql:
            await apply(connection, made, wait=wait)
        return made

    made = on_database(settings, plan)
    text = (
        f"{made.name} is no longer protected; its column last_fence_token and its marks stay, and a later protect goes"
        " on from them. To be rid of the column: ALTER TABLE … DROP COLUMN last_fence_token\n"
    )
    click.echo(made.script() if sql else text, nl=False)
