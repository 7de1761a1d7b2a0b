"""`fencepost key`: API keys, with which programs call the gateway. Each is shown once, when it is made."""

import json
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, get_args

import asyncpg
import click

from fencepost.cli.shared import on_database, one_line, settings_options
from fencepost.server.fence.caller import Access
from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import KeyChangeError, ListedKey, NewKey
from fencepost.server.settings import Settings

T = TypeVar("T")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,6})([smhd])")


class _Duration(click.ParamType[float]):
    """A time as 90d, 12h, 30m or 45s; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no time: 90d, 12h, 30m and 45s are", param, ctx)
        return float(int(found[1]) * _UNITS[found[2]])


class _AccessList(click.ParamType[tuple[str, ...]]):
    """What a key is for, as read,write."""

    name = "access"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        given = [each.strip() for each in str(value).split(",")] if isinstance(value, str) else list(value)
        for each in given:
            if each not in get_args(Access):
                self.fail(f"{each!r} is none of {', '.join(get_args(Access))}", param, ctx)
        return tuple(each for each in get_args(Access) if each in given)


@click.group()
@settings_options("database_url", "data_dir")
@click.pass_context
def key(context: click.Context, settings: Settings) -> None:
    """Make, list, rotate and revoke API keys. As the owner of the schema fencepost; a gateway needs --api-keys.

    A key is sent as `Authorization: Bearer fp_…`. Changes take effect at once, in all gateways.
    """
    context.obj = settings


@key.command()
@click.option("--role", metavar="ROLE", help="The database role of its requests.  [default: the gateway's own]")
@click.option(
    "--access", type=_AccessList(), required=True, metavar="read,write,lock", help="What it is for: one or more."
)
@click.option(
    "--locks",
    multiple=True,
    metavar="PATTERN",
    help="Locks it may see and take (orders/*). Repeatable.  [default: all]",
)
@click.option(
    "--expires", type=_Duration(), metavar="TIME", help="After how long it ends (90d, 12h).  [default: never]"
)
@click.option("--note", default="", help="What it is for, in words; `list` shows it.")
@click.pass_obj
def create(
    settings: Settings,
    role: str | None,
    access: tuple[str, ...],
    locks: tuple[str, ...],
    expires: float | None,
    note: str,
) -> None:
    """Make a key, and print it on stdout: it is stored nowhere, and cannot be shown again."""
    if role is not None and not role.strip():
        raise click.BadParameter("a role's name is needed", param_hint="--role")
    if not note.isprintable():
        raise click.BadParameter("it has characters that cannot be printed", param_hint="--note")
    if locks and "lock" not in access:
        raise click.UsageError("--locks: the key may take no locks without --access lock")
    _require_patterns(locks)
    wanted = NewKey(role, access, locks or None, _positive(expires, "--expires"), note)
    key_id, made = _on_keys(settings, lambda connection: api_keys.create(connection, wanted))
    click.echo(f"key {key_id}: this is shown once", err=True)
    click.echo(made)


@key.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_obj
def list_(settings: Settings, *, as_json: bool) -> None:
    """List the keys, the oldest first. Secrets are not stored, and not shown."""
    found = _on_keys(settings, api_keys.list_keys)
    if as_json:
        for each in found:
            click.echo(json.dumps(asdict(each), default=_iso))
        return
    if not found:
        click.echo("there is no API key: fencepost key create")
    for each in found:
        click.echo(_line(each))


@key.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap",
    type=_Duration(),
    default=0.0,
    metavar="TIME",
    help="How long the old secret is still taken (1h).  [default: it ends at once]",
)
@click.option("--expires", type=_Duration(), metavar="TIME", help="From now on.  [default: when it would have]")
@click.pass_obj
def rotate(settings: Settings, key_id: str, overlap: float, expires: float | None) -> None:
    """Give key ID a new secret, and print the key. All else about it stays, its leases too.

    A secret that still overlaps from an earlier rotation ends at once.
    """
    expires_in = _positive(expires, "--expires")
    click.echo(
        _on_keys(
            settings, lambda connection: api_keys.rotate(connection, key_id, overlap=overlap, expires_in=expires_in)
        )
    )


@key.command()
@click.argument("key_id", metavar="ID")
@click.pass_obj
def revoke(settings: Settings, key_id: str) -> None:
    """Refuse key ID from now on, for good."""
    done = _on_keys(settings, lambda connection: api_keys.revoke(connection, key_id))
    click.echo(f"key {key_id} is revoked" if done else f"key {key_id} was revoked before")


def _on_keys(settings: Settings, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    with one_line(KeyChangeError):
        return on_database(settings, work)


def _require_patterns(locks: tuple[str, ...]) -> None:
    from fencepost.server.identity.jwt import read_patterns  # noqa: PLC0415

    try:
        read_patterns(list(locks))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--locks") from error


def _positive(seconds: float | None, option: str) -> float | None:
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise click.BadParameter("it is at least 1s", param_hint=option)
    return seconds


def _line(each: ListedKey) -> str:
    parts = [
        f"{each.id}  {each.state}",
        f"role {each.role}" if each.role else "the gateway's role",
        ",".join(each.access),
    ]
    if each.locks is not None:
        parts.append(f"locks {' '.join(each.locks)}")
    parts.append(f"expires {_iso(each.expires_at)}" if each.expires_at else "does not expire")
    if each.old_until is not None:
        parts.append(f"the old secret ends {_iso(each.old_until)}")
    if each.revoked_at is not None:
        parts.append(f"revoked {_iso(each.revoked_at)}")
    parts.append(f"used {_iso(each.used_at)}" if each.used_at else "never used")
    parts.append(f"made {_iso(each.created_at)} by {each.created_by}")
    return "; ".join(parts) + (f": {each.note}" if each.note else "")


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
