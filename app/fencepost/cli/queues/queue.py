"""`fencepost queue`: the queues, how far each is applied, and what is wrong with it."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click
from pydantic import SecretStr

from fencepost.cli.database import database_url, run_command
from fencepost.cli.options import settings_options
from fencepost.cli.tables import print_table
from fencepost.settings import Settings
from fencepost.storage.queues.progress import KnownQueue

if TYPE_CHECKING:
    from fencepost.observe.events import Event
    from fencepost.queue_status import QueueStatus

_HEADER: Final = (
    "QUEUE", "PARTITIONS", "LAG", "OLDEST", "APPLIED", "REFUSED", "FAILED", "REDELIVERED", "DEAD", "STATE",
)  # fmt: skip
_COUNTS: Final = ("applied", "refused", "failed", "redelivered")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a queue, with its partitions.")
@settings_options("database_url", "data_dir", "queues")
def queue(settings: Settings, as_json: bool) -> None:
    """List the queues that were ever configured: how far they are applied, dead letters, what is wrong.

    LAG counts positions that are not decided, OLDEST is the age of the oldest such message. The logs of queues that are
    not in FENCEPOST_QUEUES here are not asked: what is known of those is what their consumers have recorded. Exit
    code 1 when one of them is quarantined.
    """
    seen, trouble = _look(settings)
    if as_json:
        for each in seen:
            click.echo(json.dumps(_as_json(each), ensure_ascii=False))
    else:
        print_table(_HEADER, [_line(each) for each in seen])
        for text in trouble:
            click.echo(text, err=True)
    if quarantined := [each.known.name for each in seen if each.known.quarantined is not None]:
        click.echo(f"when its log can be vouched for: fencepost source raise {quarantined[0]} --reason …", err=as_json)
        raise SystemExit(1)


def _look(settings: Settings) -> tuple[list["QueueStatus"], list[str]]:
    """Ask the database and the logs; what is the trouble with logs, a line each."""
    from fencepost.gateway_wiring import check_database, database_for_commands  # noqa: PLC0415
    from fencepost.observe.events import SourceTrouble  # noqa: PLC0415 - heavy
    from fencepost.queue_status import look_at  # noqa: PLC0415
    from fencepost.queue_wiring import queues_opened, read_queues  # noqa: PLC0415
    from fencepost.startup import StartupError  # noqa: PLC0415

    dsn = database_url(settings)
    resolved = settings.model_copy(update={"database_url": SecretStr(dsn)})
    trouble: list[str] = []

    def note(event: "Event") -> None:
        if isinstance(event, SourceTrouble):
            trouble.append(f"{event.source}: {event.reason}")

    async def run() -> list["QueueStatus"]:
        configured = read_queues(resolved)
        await check_database(dsn)
        async with (
            database_for_commands(resolved) as database,
            queues_opened(configured, database, dsn, note) as logs,
        ):
            return await look_at(database, logs)

    try:
        return run_command(run), trouble
    except StartupError as error:
        raise click.ClickException(str(error)) from error


def _line(status: "QueueStatus") -> tuple[str, ...]:
    known = status.known
    lag = sum(status.lags) if status.lags else None
    counts = [str(sum(getattr(each, name) for each in known.partitions)) for name in _COUNTS]
    return (
        known.name,
        _or_dash(max(len(known.partitions), len(status.lags)) or None),
        _or_dash(lag),
        f"{status.oldest_s:.1f} s" if status.oldest_s else "-",
        *counts,
        _or_dash(status.dead),
        _state(known, status.trouble),
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _state(known: KnownQueue, trouble: str | None) -> str:
    if known.quarantined is not None:
        return f"quarantined: {known.quarantined}"
    parts = [f"generation {known.generation}"]
    if known.stopped:
        parts.append(f"{known.stopped} resources stopped")
    parts += [each.describe() for each in known.blocked]
    if trouble is not None:
        parts.append(trouble)
    return ", ".join(parts)


def _as_json(status: "QueueStatus") -> dict[str, object]:
    return {
        **asdict(status.known),
        "lags": list(status.lags),
        "ages": list(status.ages),
        "dead": status.dead,
        "trouble": status.trouble,
    }
