"""`fencepost status` and `fencepost doctor`."""

import json

import asyncpg
import click

from fencepost.settings import Settings
from fencepost.storage import inspect, inspect_origin, inspect_tokens, leases, pruning
from fencepost.storage.inspect import Finding, Protected
from fencepost.storage.leases import LockState
from fencepost.storage.pruning import Size

from .database import on_database
from .options import settings_options

_TABLES = ("TABLE", "RULE", "SOURCE", "KEY", "ROWS", "MARKS", "SINCE")
_LOCKS = ("LOCK", "HOLDER", "LEASE", "TOKEN", "SECONDS LEFT", "WAITING")
_MOST_LOCKS = 1000
_KILO = 1024
_KEPT = {"marks": "marks", "idempotency": "idempotency records"}
_SIGNS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


@click.command()
@settings_options("database_url", "data_dir")
def status(settings: Settings) -> None:
    """Say what is protected, and how; who holds locks, for how long still, and who waits.

    ROWS is the planner's estimate; MARKS counts keys that have a mark and no row (deleted, or claimed before they
    existed). The marks below the table are all that are kept, of live rows too. TOKEN is the newest of the lease;
    WAITING names who waits, first come first.
    """

    async def look(
        connection: asyncpg.Connection,
    ) -> tuple[list[Protected], list[str], list[LockState], list[Size], list[tuple[str, int]]]:
        return (
            await inspect.protected_tables(connection),
            await inspect.unprotected_tables(connection),
            await leases.lock_states(connection, None, None, _MOST_LOCKS),
            await pruning.counted(connection),
            await pruning.raised_floors(connection),
        )

    protected, unprotected, locks, sizes, floors = on_database(settings, look)
    if protected:
        _print_table(
            _TABLES,
            [(p.name, p.rule, p.source, ",".join(p.key), str(p.rows), str(p.marks), p.since) for p in protected],
        )
    else:
        click.echo("no table is protected: fencepost protect TABLE")
    if unprotected:
        click.echo(f"not protected: {', '.join(unprotected)}")
    for size in sizes:
        click.echo(f"{_KEPT.get(size.what, size.what)}: {size.records}, {_human(size.bytes)} on disk")
    if floors:
        click.echo("floors, up to which marks were pruned: " + ", ".join(f"{name} {floor}" for name, floor in floors))
    if locks:
        click.echo()
        _print_table(_LOCKS, [_lock(state) for state in locks])
        if len(locks) == _MOST_LOCKS:
            click.echo(f"the first {_MOST_LOCKS} by name; GET /v1/locks?after=… lists more")


def _human(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < _KILO:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} TB"


def _lock(state: LockState) -> tuple[str, ...]:
    waiting = ", ".join(waiter["owner"] for waiter in json.loads(state.waiters))
    if state.remaining_ms is None:
        return (state.name, "(free)", "", "", "", waiting)
    left = f"{state.remaining_ms / 1000:.1f}"
    return (state.name, state.owner or "", str(state.lease_id), str(state.last_token), left, waiting)


def _print_table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    widths = [max(len(line[n]) for line in [header, *lines]) for n in range(len(header))]
    for line in [header, *lines]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


@click.command()
@settings_options("database_url", "data_dir")
def doctor(settings: Settings) -> None:
    """Say what is amiss: server, schema, and every protected table. Exit code 1 when there is an error."""

    async def look(connection: asyncpg.Connection) -> list[Finding]:
        findings = await inspect.examine_server(connection)
        if all(finding.subject != "schema" or finding.level == "ok" for finding in findings):
            findings += await inspect.examine_tables(connection)
            findings += await inspect_tokens.examine_tokens(connection)
            findings += await inspect_origin.examine_origin(connection)
            findings += await inspect.examine_privileges(connection)
        return findings

    findings = on_database(settings, look, migrated=False)
    for finding in findings:
        click.echo(f"{_SIGNS[finding.level]}  {finding.subject}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(1)
