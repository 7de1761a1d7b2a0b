"""`fencepost mint`: more tokens for a command that runs under `fencepost lock`."""

import asyncio
import os
from urllib.parse import quote

import click

from fencepost.cli import gateway
from fencepost.cli.gateway import DEFAULT_URL, api_token_option, lost_exit_code_option, read_api_token
from fencepost.client import ApiError, Retry, SystemClock, Token, Unauthenticated
from fencepost.client.http import FILE_VARIABLE, TOKEN_VARIABLE, Call, Exchange
from fencepost.client.lease import ANSWER_SECONDS, SECRET_HEADER


@click.command()
@click.argument("count", type=click.IntRange(min=1), default=1)
@click.option("--sealed", is_flag=True, help="Print them with their seals, for tables that want them: X-Fence-Token.")
@api_token_option
@lost_exit_code_option
def mint(count: int, sealed: bool, api_token_file: str | None, lost_exit_code: int) -> None:
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
    api_token = read_api_token(api_token_file)
    try:
        tokens = asyncio.run(_mint(url, api_token, lease, secret, count, sealed=sealed))
    except ApiError as error:
        click.echo(f"fencepost mint: {error}", err=True)
        if isinstance(error, Unauthenticated) and api_token is None:
            click.echo(
                f"fencepost mint: `fencepost lock` hands on {FILE_VARIABLE}, and not {TOKEN_VARIABLE}: use a file",
                err=True,
            )
        raise SystemExit(gateway.of_error(error, lost=lost_exit_code)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo("\n".join(tokens))


async def _mint(url: str, api_token: Token | None, lease: str, secret: str, count: int, *, sealed: bool) -> list[str]:
    async with Exchange(
        url,
        retry=Retry(),
        clock=SystemClock(),
        timeout=ANSWER_SECONDS,
        headers={},
        verify=True,
        transport=None,
        decimals=False,
        token=api_token,
    ) as exchange:
        call = Call(
            method="POST",
            path=f"/v1/leases/{quote(lease, safe='')}/tokens",
            headers={SECRET_HEADER: secret},
            body={"count": count},
            upkeep=True,
        )
        answer = await exchange.repeat(call)
        if sealed and "sealed_tokens" not in answer.body:
            raise ValueError(f"--sealed: {url} seals no tokens: it has no FENCEPOST_SEAL_KEYS_FILE")
        return [str(token) for token in answer.body["sealed_tokens" if sealed else "tokens"]]
