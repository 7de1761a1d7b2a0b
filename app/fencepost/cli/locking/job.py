"""What `fencepost lock` and `fencepost elect` are to do."""

import contextlib
from dataclasses import dataclass

import click

from fencepost.client import Token
from fencepost.client.lease import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run under which locks. Times in seconds; `wait` None waits for ever.

    token: what the client takes; token_file: its file, if --api-token-file names one.
    election: what to be elected for, with the first of `names`. again: campaign anew when leadership was lost.
    """

    url: str
    names: tuple[str, ...]
    claims: tuple[str, ...]
    owner: str | None
    source: str | None
    ttl: float
    wait: float | None
    grace: float
    command: tuple[str, ...]
    held_code: int
    lost_code: int
    verbose: bool
    token: Token | None = None
    token_file: str | None = None
    election: str | None = None
    again: bool = False
    writes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return ", ".join(self.names)

    @property
    def program(self) -> str:
        """Name the command that runs this job."""
        return "fencepost lock" if self.election is None else "fencepost elect"

    def print_line(self, text: str) -> None:
        """Print a line to stderr; a closed stderr is no error."""
        with contextlib.suppress(OSError):
            click.echo(f"{self.program}: {text}", err=True)


def margin_for(ttl: float, grace: float) -> float:
    """Return how long before its expiry a lease must not be trusted any more. ValueError if they make no sense."""
    reserve = Timings.of(ttl).margin
    if not 0 <= grace <= ttl / 2 - reserve:
        raise ValueError(
            f"--grace {grace:g} does not fit into --ttl {ttl:g}: the command must be dead before the lease expires, "
            f"and renewals need half of the TTL. The grace can be {ttl / 2 - reserve:g} s at most"
        )
    return grace + reserve
