"""`fencepost batch`: sends a file of writes and claims to a gateway, and can go on where it stopped."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any, Final, NoReturn

import click

from fencepost.cli.api_token import api_token_option, read_api_token
from fencepost.cli.locking import exit_codes
from fencepost.cli.locking.options import DEFAULT_URL
from fencepost.client import ApiError, Client, Token
from fencepost.client.http.jsontext import dumps

_REFUSED: Final = 1
_INTERRUPTED: Final = 130
_SHOWN_EVERY: Final = 65_536
"""Bytes of the file between two looks of the progress bar."""


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--from-line", type=click.IntRange(1), default=1, show_default=True, help="Go on at this line of FILE.")
@click.option("--all", "show_all", is_flag=True, help="Print every verdict, not only those of lines that were refused.")
@click.option(
    "--url", envvar="FENCEPOST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The gateway."
)
@api_token_option
def batch(file: IO[bytes], from_line: int, show_all: bool, url: str, api_token_file: str | None) -> None:
    """Send the lines of FILE (- is the standard input), 256 at a time, to POST /v1/batch, and print the verdicts of
    those refused, as JSON lines whose `number` is that of the line in FILE.

    A line without an idempotency_key gets one, made of its number and its text. So FILE can be sent again, whole or
    from a line: what has landed is not done again, for as long as the gateway keeps keys.

    Exit codes: 0 every line was accepted, 1 some were refused, 69 the gateway cannot be reached, 130 Ctrl-C, 2 bad
    usage, or the gateway refuses all of it. After 69 and 130 the standard error says from which line to go on.
    """
    api_token = read_api_token(api_token_file)
    sending = _Sending(file, from_line, show_all=show_all)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        asyncio.run(sending.run(url, api_token))
    except (ApiError, KeyboardInterrupt) as error:
        code = exit_codes.of_error(error) if isinstance(error, ApiError) else _INTERRUPTED
        click.echo(f"fencepost batch: {str(error) or 'interrupted'}", err=True)
        click.echo(f"fencepost batch: go on with --from-line {sending.next_line}", err=True)
        raise SystemExit(code) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{sending.accepted} accepted, {sending.refused} refused", err=True)
    if sending.refused:
        raise SystemExit(_REFUSED)


@dataclass
class _Sending:
    """A file on its way. `next_line`: the first one without a verdict."""

    file: IO[bytes]
    next_line: int
    show_all: bool = field(kw_only=True)
    accepted: int = 0
    refused: int = 0
    _sent: "deque[tuple[int, int]]" = field(default_factory=deque)
    """Numbers and sizes of lines that wait for their verdicts."""

    async def run(self, url: str, api_token: Token | None) -> None:
        """Send it."""
        with self._bar() as bar:
            shown = 0
            async with (
                Client(url, token=api_token, decimals=True) as client,
                contextlib.aclosing(client.batch(self._lines())) as said,
            ):
                async for verdict in said:
                    number, size = self._sent.popleft()
                    self.next_line = number + 1
                    self.accepted += verdict.error is None
                    self.refused += verdict.error is not None
                    if self.show_all or verdict.error is not None:
                        click.echo(dumps({**verdict.members, "number": number}))
                    shown += size
                    if shown >= _SHOWN_EVERY:
                        bar.update(shown)
                        shown = 0
            bar.update(shown)

    def _bar(self) -> Any:
        """Make the progress bar: of the file's bytes, if it has a size."""
        found = os.fstat(self.file.fileno())
        length = found.st_size if stat.S_ISREG(found.st_mode) else 0
        return click.progressbar(length=length, label="sending", file=sys.stderr, hidden=not length)

    def _lines(self) -> Iterator[bytes]:
        first = self.next_line
        for number, raw in enumerate(itertools.islice(self.file, first - 1, None), first):
            if text := raw.strip(b" \t\r\n"):
                self._sent.append((number, len(raw)))
                yield _with_key(number, text)


def _with_key(number: int, text: bytes) -> bytes:
    """Give a line its key, and leave the rest of it as it stands. What is wrong with a line, the gateway says."""
    try:
        members = json.loads(text.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return text
    if not isinstance(members, dict) or not members or "idempotency_key" in members:
        return text
    return b'{"idempotency_key":"%d-%b",%b' % (number, hashlib.sha256(text).hexdigest().encode(), text[1:])


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """End at once, also while the next line is waited for: asyncio's own handler would wait for that."""
    raise KeyboardInterrupt
