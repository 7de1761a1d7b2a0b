"""How queues stand, for the commands that show it: the database and the logs that are configured here are asked."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click
from pydantic import SecretStr

from fencepost.cli.database import database_url, run_command
from fencepost.server.settings import Settings

if TYPE_CHECKING:
    from fencepost.server.observe.events import Event
    from fencepost.server.queue_status import QueueStatus

_NEVER_OPENED: Final = "its log was not asked: no gateway and no consumer has opened this queue on this database"


def look_at_queues(settings: Settings) -> tuple[list["QueueStatus"], list[str]]:
    """Ask the database and the logs, and write nothing; what is the trouble with logs, a line each."""
    from fencepost.server.gateway_wiring import check_database, database_for_commands  # noqa: PLC0415
    from fencepost.server.observe.events import SourceTrouble  # noqa: PLC0415 - heavy
    from fencepost.server.postgres.queues import progress  # noqa: PLC0415
    from fencepost.server.queue_status import look_at  # noqa: PLC0415
    from fencepost.server.queue_wiring import queues_opened, read_queues  # noqa: PLC0415
    from fencepost.server.queues.registry import DEFAULT  # noqa: PLC0415
    from fencepost.server.startup import StartupError  # noqa: PLC0415
    from fencepost.server.times import TIMES  # noqa: PLC0415

    dsn = database_url(settings)
    resolved = settings.model_copy(update={"database_url": SecretStr(dsn)})
    trouble: list[str] = []

    def note(event: "Event") -> None:
        if isinstance(event, SourceTrouble):
            trouble.append(f"{event.source}: {event.reason}")

    async def run() -> list["QueueStatus"]:
        configured = read_queues(resolved)
        await check_database(dsn)
        async with database_for_commands(resolved) as database:
            async with database.connection() as connection:
                known = {each.name for each in await progress.known(connection)}
            trouble.extend(f"{each.name}: {_NEVER_OPENED}" for each in configured if each.name not in known)
            asked = [each for each in configured if each.name in known]
            async with queues_opened(asked, database, dsn, note, register=False) as logs:
                return await look_at(database, logs, TIMES.health.ask_for, also=DEFAULT)

    try:
        return run_command(run), trouble
    except StartupError as error:
        raise click.ClickException(str(error)) from error


def queue_as_json(status: "QueueStatus") -> dict[str, object]:
    """Give all that is known of a queue, with its partitions."""
    return {
        **asdict(status.known),
        "lags": list(status.lags),
        "ages": list(status.ages),
        "dead": status.letters,
        "dead_by_partition": status.dead,
        "trouble": status.trouble,
    }
