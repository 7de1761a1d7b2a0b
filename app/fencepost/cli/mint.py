"""`fencepost mint`: more tokens for a command that runs under `fencepost lock`."""

import asyncio
import os
from urllib.parse import quote

import click

from fencepost.cli.locking import exit_codes
from fencepost.cli.locking.options import DEFAULT_URL
from fencepost.client import ApiError, Retry, SystemClock
from fencepost.client.acquiring import SECRET_HEADER
from fencepost.client.exchange import Call, Exchange

_ANSWER_SECONDS = 10.0


@click.command()
@click.argument("count", type=click.IntRange(min=1), default=1)
@click.option(
    "--lost-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.LOST,
    show_default=True,
    metavar="N",
    help="When the lock was lost.",
)
def mint(count: int, lost_exit_code: int) -> None:
    """Print COUNT fresh fencing tokens, one a line, for the command of `fencepost lock` that calls this.

    Under the rule strict each write of a resource needs a token of its own. A later token is larger, and larger than
    FENCE_TOKEN. The lease is the one of FENCEPOST_LEASE, FENCEPOST_LEASE_SECRET and FENCEPOST_URL.

    Exit codes as for `fencepost lock`: 79 the lock was lost (nothing is printed), 69 the gateway cannot be reached,
    2 bad usage, or the gateway refuses what is asked for.
    """
    lease, secret = os.environ.get("FENCEPOST_LEASE"), os.environ.get("FENCEPOST_LEASE_SECRET")
    if not lease or not secret:
        raise click.UsageError("FENCEPOST_LEASE and FENCEPOST_LEASE_SECRET are not set: `fencepost lock` sets them")
    url = os.environ.get("FENCEPOST_URL") or DEFAULT_URL
    try:
        tokens = asyncio.run(_mint(url, lease, secret, count))
    except ApiError as error:
        click.echo(f"fencepost mint: {error}", err=True)
        raise SystemExit(exit_codes.of_error(error, lost=lost_exit_code)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo("\n".join(tokens))


async def _mint(url: str, lease: str, secret: str, count: int) -> list[str]:
    async with Exchange(
        url,
        retry=Retry(),
        clock=SystemClock(),
        timeout=_ANSWER_SECONDS,
        headers={},
        verify=True,
        transport=None,
        decimals=False,
    ) as exchange:
        call = Call(
            method="POST",
            path=f"/v1/leases/{quote(lease, safe='')}/tokens",
            headers={SECRET_HEADER: secret},
            body={"count": count},
            upkeep=True,
        )
        answer = await exchange.repeat(call)
        return [str(token) for token in answer.body["tokens"]]
