"""Names of queues on the command line."""

from collections.abc import Sequence

import click

from fencepost.server.queue_wiring import ConfiguredQueue, names_of_queues, read_queues
from fencepost.server.queues.log import LogConfigError
from fencepost.server.queues.registry import DEFAULT, require_name
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError


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
    try:
        names = names_of_queues(settings)
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    if len(names) > 1:
        raise click.UsageError(f"which QUEUE? There are {', '.join(names)}.")
    return names[0]
