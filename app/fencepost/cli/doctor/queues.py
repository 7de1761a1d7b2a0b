"""What `fencepost doctor` asks the logs of the queues: dead letters, and which settings of servers lose messages."""

from collections.abc import Mapping, Sequence

import click

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.queues import table_log
from fencepost.server.queue_wiring import ConfiguredQueue, read_queues
from fencepost.server.queues.log import LogError
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError


def read_configured_queues(settings: Settings) -> list[ConfiguredQueue]:
    """Read FENCEPOST_QUEUES. Raises ClickException."""
    try:
        return read_queues(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


async def examine_dead_letters(connection: Connection) -> list[Finding]:
    """Count the dead letters of the database's own queue."""
    return _dead(DEFAULT, await table_log.count_dead(connection))


async def examine_queues(configured: Sequence[ConfiguredQueue]) -> list[Finding]:
    """Ask each log for its dead letters and its advice; one that cannot be asked is an error."""
    findings = []
    for queue in configured:
        subject = f"queue {queue.name}"
        try:
            await queue.log.open()
            findings += [Finding("warning", subject, text) for text in await queue.log.advice()]
            findings += _dead(queue.name, await queue.log.dead.count())
        except LogError as error:
            findings.append(Finding("error", subject, f"{error}"))
        finally:
            await queue.log.close()
    return findings


def _dead(queue: str, letters: Mapping[int, int]) -> list[Finding]:
    count = sum(letters.values())
    text = f"dead letters: {count}, writes that were acknowledged and are not applied. `fencepost dead list {queue}`"
    return [Finding("warning", f"queue {queue}", text)] if count else []
