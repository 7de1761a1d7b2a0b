"""What `fencepost doctor` asks the logs of the configured queues: which of their servers' settings lose messages."""

from collections.abc import Sequence

import click

from fencepost.queue_wiring import ConfiguredQueue, read_queues
from fencepost.queues.log import LogError
from fencepost.settings import Settings
from fencepost.startup import StartupError
from fencepost.storage.inspecting.overview import Finding


def read_configured_queues(settings: Settings) -> list[ConfiguredQueue]:
    """Read FENCEPOST_QUEUES. Raises ClickException."""
    try:
        return read_queues(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error


async def examine_queues(configured: Sequence[ConfiguredQueue]) -> list[Finding]:
    """Ask each log for its advice; one that cannot be asked is an error."""
    findings = []
    for queue in configured:
        subject = f"queue {queue.name}"
        try:
            await queue.log.open()
            findings += [Finding("warning", subject, text) for text in await queue.log.advice()]
        except LogError as error:
            findings.append(Finding("error", subject, f"{error}"))
        finally:
            await queue.log.close()
    return findings
