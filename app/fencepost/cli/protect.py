"""`fencepost protect TABLE` and `fencepost unprotect TABLE`."""

from collections.abc import Mapping
from typing import Final, Unpack

import asyncpg
import click

from fencepost.cli.shared import on_database, settings_options
from fencepost.server.fence.token import EXTERNAL, HIGHEST_TOKEN, MAX_TOKEN
from fencepost.server.ops import protect as ops
from fencepost.server.ops.doctor import LOCK_TIMEOUT, examine
from fencepost.server.ops.doctor_tables import TABLES
from fencepost.server.settings import Settings

_SQL = click.option("--sql", is_flag=True, help="Print the DDL instead and touch nothing.")
_WAIT = click.option(
    "--wait", default=30.0, show_default=True, metavar="SECONDS", help="How long to try for the table's lock."
)


def _changes(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [each.partition("=") for each in given]
    changes = {name: value for name, equals, value in pairs if name and equals}
    if len(changes) < len(given):
        raise click.BadParameter("it is COLUMN=VALUE, once for each column.")
    return changes or None


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
@click.option(
    "--triggers-see-own-row/--no-triggers-see-own-row",
    default=None,
    help="You vouch that triggers of yours which the gateway does not understand look at their own row only: writes "
    "share transactions all the same (docs/protect.md says what that is).",
)
@click.option(
    "--work/--no-work",
    default=None,
    help="Workers take the table's rows, the next free one each time: a trigger tells those that wait for one.",
)
@click.option(
    "--max-attempts", type=click.IntRange(0), metavar="N", help="With --work: how often a row is taken. 0: no bound."
)
@click.option(
    "--on-exhausted",
    multiple=True,
    callback=_changes,
    metavar="COLUMN=VALUE",
    help="With --max-attempts: what puts a row aside that was taken so often: status=failed. May be repeated.",
)
@_SQL
@_WAIT
def protect(
    table: str, settings: Settings, no_scope: bool, sql: bool, wait: float, **asked: Unpack[ops.ProtectOptions]
) -> None:
    """Protect TABLE: from now on every write to it needs a fencing token.

    Adds the column last_fence_token, its check and triggers. No row is rewritten, and the table is locked for
    milliseconds. Repeating it changes nothing; with another option it changes that one. A table with marks
    that becomes builtin is read once under its lock: the leases' tokens go on from above its highest mark.
    """
    if no_scope and asked["scope"] is not None:
        raise click.UsageError("--scope and --no-scope exclude each other.")
    if no_scope:
        asked["scope"] = ""

    async def act(connection: asyncpg.Connection) -> str:
        if sql:
            return (await ops.plan_protect(connection, table, **asked)).script()
        changed = await ops.protect(connection, table, wait=wait, **asked)
        await _warn(connection, changed.name)
        return _said(changed)

    click.echo(on_database(settings, act), nl=False)


_NO_OPTIONS: Final = {"relation", "name", "key_columns", "functions", "protected_at", "protected_by", "partitions"}
"""Columns of fencepost.protected that follow from the table itself."""


def _said(done: ops.Changed) -> str:
    """Say what `protect` has done: what a table has now that had no fence, or what has changed of one that had."""
    before, after, source = done.before, done.after, str(done.after["source"])
    lines = [f"{done.name} is protected: writes need {f'to go by {source}' if ':' in source else 'a token'}"]
    if before is None:
        lines += [
            "  column    last_fence_token has a row's mark; rows that were there begin at 0",
            "  triggers  judge direct SQL, too: without a token it is refused from now on (FP428, docs/direct-sql.md)",
            f"  tokens    {_tokens(after)}",
        ]
    else:
        was = {name: value for name, value in before.items() if name not in _NO_OPTIONS}
        changed = [
            f"{_option(name)} from {_shown(value)} to {_shown(after[name])}"
            for name, value in was.items()
            if value != after[name]
        ]
        stays = [f"{_option(name)} {_shown(value)}" for name, value in was.items() if value and value == after[name]]
        lines += [f"  changed   {', '.join(changed) or 'nothing'}", f"  stays     {', '.join(stays)}"]
    return "\n".join(lines) + "\n"


def _tokens(protection: Mapping[str, object]) -> str:
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
    return "require idempotency key" if name == "requires_key" else name.replace("_", " ")


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

    async def act(connection: asyncpg.Connection) -> str:
        if sql:
            return (await ops.plan_unprotect(connection, table)).script()
        name = await ops.unprotect(connection, table, wait=wait)
        return (
            f"{name} is no longer protected; its column last_fence_token and its marks stay, and a later protect goes"
            " on from them. To be rid of the column: ALTER TABLE … DROP COLUMN last_fence_token\n"
        )

    click.echo(on_database(settings, act), nl=False)
