"""The command `fencepost`: one subcommand a file, imported when it is asked for."""

import importlib
import os
import signal
import sys
from typing import Any, Final

import click

from fencepost import __version__

COMMANDS: Final = {
    "batch": "batch",
    "check": "check",
    "consume": "consume",
    "dead": "dead",
    "doctor": "status",
    "elect": "lock",
    "fence": "operate",
    "generation": "operate",
    "key": "key",
    "lock": "lock",
    "migrate": "migrate",
    "mint": "mint",
    "protect": "protect",
    "queue": "queue",
    "release": "operate",
    "report": "check",
    "serve": "serve",
    "source": "operate",
    "status": "status",
    "torture": "torture",
    "unprotect": "protect",
    "work": "work",
}
"""The module of each command. It has the command under the command's name, `_` for `-`."""
_OF_THE_HARNESS: Final = ("check", "report", "torture")
_RUN_COMMANDS: Final = ("elect", "lock", "work")


class _Commands(click.Group):
    """Loads only the command that runs: a script calls `fencepost mint` for each write, and needs no server for it.

    An install without extras has the client and what needs no more. A command whose libraries are missing says which
    extra has them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in _RUN_COMMANDS and not hasattr(os, "waitid"):
            return _Refused(cmd_name, "waits for the processes of COMMAND as Linux does: this system cannot.")
        try:
            module = importlib.import_module(f"fencepost.cli.{COMMANDS[cmd_name]}")
        except ModuleNotFoundError as error:
            return _Refused(cmd_name, _missing(cmd_name, error))
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What it imports while it runs may be missing as well."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            name = str(ctx.invoked_subcommand)
            raise click.UsageError(f"fencepost {name} {_missing(name, error)}") from error


class _Refused(click.Command):
    """Stands for a command that cannot run here; `--help` of `fencepost` lists it with the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, help=reason, add_help_option=False)
        self.reason = reason

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002 - click's signature
        """Refuse whatever is asked of it: exit code 2."""
        raise click.UsageError(f"fencepost {self.name} {self.reason}")


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """Say which extra has a module that cannot be imported. Raises the error where the module is Fencepost's own."""
    if (error.name or "fencepost").partition(".")[0] == "fencepost":
        raise error
    extra = "testing" if command in _OF_THE_HARNESS else "server"
    return f"needs the extra {extra!r}: pip install '.[{extra}]' in Fencepost's clone. ({error.name} is missing.)"


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="fencepost")
def main() -> None:
    """Refuse stale writes: a fencing-token enforcing storage gateway for PostgreSQL."""
    if sys.platform != "win32":
        # What started us may have blocked signals, or ignored the end of children; we wait for both.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if file := os.environ.get("SSLKEYLOGFILE"):  # each TLS context of Python's opens it
        try:
            with open(file, "ab"):  # noqa: PTH123 - as ssl opens it
                pass
        except OSError as error:
            raise click.ClickException(f"SSLKEYLOGFILE: {file} cannot be opened: {error.strerror}") from error
