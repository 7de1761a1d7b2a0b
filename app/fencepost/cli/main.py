"""The command `fencepost`: one subcommand a file, imported when it is asked for."""

import importlib
import os
import signal
from typing import Final

import click

from fencepost import __version__

COMMANDS: Final = {
    "batch": "batch",
    "check": "check",
    "consume": "queues.consume",
    "dead": "queues.dead",
    "doctor": "status",
    "elect": "locking.elect",
    "fence": "fence",
    "generation": "generation",
    "key": "key",
    "lock": "locking.lock",
    "migrate": "migrate",
    "mint": "locking.mint",
    "protect": "protect",
    "queue": "queues.queue",
    "release": "locking.release",
    "report": "report",
    "serve": "serve",
    "source": "source",
    "status": "status",
    "torture": "torture",
    "unprotect": "protect",
}
"""The module of each command. It has the command under the command's name, `_` for `-`."""


class _Commands(click.Group):
    """Loads only the command that runs: a script calls `fencepost mint` for each write, and needs no server for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"fencepost.cli.{COMMANDS[cmd_name]}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)  # noqa: S101 - for the type
        return command


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="fencepost")
def main() -> None:
    """Refuse stale writes: a fencing-token enforcing storage gateway for PostgreSQL."""
    # What started us may have blocked signals, or ignored the end of children: those that we wait for would not come.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if file := os.environ.get("SSLKEYLOGFILE"):  # each TLS context of Python's opens it
        try:
            with open(file, "ab"):  # noqa: PTH123 - as ssl opens it
                pass
        except OSError as error:
            raise click.ClickException(f"SSLKEYLOGFILE: {file} cannot be opened: {error.strerror}") from error
