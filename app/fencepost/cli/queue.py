"""`fencepost queue`: how far each queue is, and the names of queues as commands take them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click
from pydantic import SecretStr

from fencepost.cli.shared import database_url, one_line, print_table, run_command, settings_options
from fencepost.server.parts import names_of_queues, read_queues
from fencepost.server.postgres import queues
from fencepost.server.queues.log import LogConfigError
from fencepost.server.queues.registry import DEFAULT, ConfiguredQueue, QueueStatus, look_at, queues_opened, require_name
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES

if TYPE_CHECKING:
    from fencepost.server.observe.events import Event


def chosen_queues(settings: Settings, names: Sequence[str]) -> list[ConfiguredQueue]:
    """Find the configured queues of these names; the one of the database itself needs no configuration. Raises
    StartupError for a name that is none, or that is not configured.
    """
    configured = {each.name: each for each in read_queues(settings)}
    for name in names:
        try:
            require_name(name)
        except LogConfigError as error:
            raise StartupError(str(error)) from error
        if name != DEFAULT and name not in configured:
            known = ", ".join([DEFAULT, *configured])
            raise StartupError(f"{name} is not configured here, but {known} is: FENCEPOST_QUEUES takes its URL")
    return [configured[name] for name in dict.fromkeys(names) if name in configured]


def only_queue(settings: Settings) -> str:
    """Give the name of the queue where there is one only. Raises UsageError."""
    with one_line(StartupError):
        names = names_of_queues(settings)
    if len(names) > 1:
        raise click.UsageError(f"which QUEUE? There are {', '.join(names)}.")
    return names[0]


_NEVER_OPENED: Final = "its log was not asked: no gateway and no consumer has opened this queue on this database"


def look_at_queues(settings: Settings) -> tuple[list[QueueStatus], list[str]]:
    """Ask the database and the logs, and write nothing; what is the trouble with logs, a line each."""
    from fencepost.server.observe.events import SourceTrouble  # noqa: PLC0415 - heavy
    from fencepost.server.serve import check_database, database_for_commands  # noqa: PLC0415

    dsn = database_url(settings)
    resolved = settings.model_copy(update={"database_url": SecretStr(dsn)})
    trouble: list[str] = []

    def note(event: "Event") -> None:
        if isinstance(event, SourceTrouble):
            trouble.append(f"{event.source}: {event.reason}")

    async def run() -> list[QueueStatus]:
        configured = read_queues(resolved)
        await check_database(dsn)
        async with database_for_commands(resolved) as database:
            async with database.connection() as connection:
                known = {each.name for each in await queues.known(connection)}
            trouble.extend(f"{each.name}: {_NEVER_OPENED}" for each in configured if each.name not in known)
            asked = [each for each in configured if each.name in known]
            async with queues_opened(asked, database, dsn, note, register=False) as logs:
                return await look_at(database, logs, TIMES.health.ask_for, also=DEFAULT)

    with one_line(StartupError):
        return run_command(run), trouble


def queue_as_json(status: QueueStatus) -> dict[str, object]:
    """Give all that is known of a queue, with its partitions."""
    return {
        **asdict(status.known),
        "lags": list(status.lags),
        "ages": list(status.ages),
        "dead": status.letters,
        "dead_by_partition": status.dead,
        "trouble": status.trouble,
    }


_HEADER: Final = (
    "QUEUE", "PARTITIONS", "LAG", "OLDEST", "APPLIED", "REFUSED", "FAILED", "REDELIVERED", "DEAD", "STATE",
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a queue, with its partitions.")
@settings_options("database_url", "data_dir", "queues")
def queue(settings: Settings, as_json: bool) -> None:
    """List the queues that were ever configured: how far they are applied, dead letters, what is wrong.

    LAG counts positions that are not decided, OLDEST is the age of the oldest such message. The logs of queues that are
    not in FENCEPOST_QUEUES here are not asked: what is known of those is what their consumers have recorded. Exit
    code 1 when one of them is quarantined.
    """
    seen, trouble = look_at_queues(settings)
    if as_json:
        for each in seen:
            click.echo(json.dumps(queue_as_json(each), ensure_ascii=False))
    else:
        print_table(_HEADER, [_line(each) for each in seen])
        for text in trouble:
            click.echo(text, err=True)
    if quarantined := [each.known.name for each in seen if each.known.quarantined is not None]:
        click.echo(f"when its log can be vouched for: fencepost source raise {quarantined[0]} --reason …", err=as_json)
        raise SystemExit(1)


def _line(status: QueueStatus) -> tuple[str, ...]:
    known = status.known
    return (
        known.name,
        _or_dash(max(len(known.partitions), len(status.lags)) or None),
        _or_dash(status.lag),
        f"{status.oldest_s:.1f} s" if status.oldest_s else "-",
        *(str(count) for count in status.counts.values()),
        _or_dash(status.letters),
        ", ".join([f"generation {known.generation}", *status.faults()]),
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
