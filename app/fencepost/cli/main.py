"""The command `fencepost`: one subcommand a file."""

import click

from fencepost import __version__

from .migrate import migrate
from .protect import protect, unprotect
from .serve import serve
from .status import doctor, status


@click.group()
@click.version_option(__version__, prog_name="fencepost")
def main() -> None:
    """Refuse stale writes: a fencing-token enforcing storage gateway for PostgreSQL."""


for command in (serve, migrate, protect, unprotect, status, doctor):
    main.add_command(command)
