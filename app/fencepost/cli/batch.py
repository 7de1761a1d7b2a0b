"""`fencepost batch`: sends a file of writes and claims to a gateway, and can go on where it stopped."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shlex
import signal
import stat
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Final, NoReturn

import click

from fencepost.cli import gateway
from fencepost.cli.gateway import DEFAULT_URL, api_token_option, read_api_token
from fencepost.client import ApiError, Client, Token, Verdict
from fencepost.client.http import dumps

_REFUSED: Final = 1
_IO_FAILED: Final = 74  # EX_IOERR
_SHOWN_EVERY: Final = 65_536
"""Bytes of the file between two looks of the progress bar."""


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--from-line", type=click.IntRange(1), default=1, show_default=True, help="Go on at this line of FILE.")
@click.option(
    "--run",
    metavar="NAME",
    help="Lines are done once under one NAME. Default: the path of FILE; for a pipe, a new name each time.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every verdict, not only those of lines that were refused.")
@click.option(
    "--url", envvar="FENCEPOST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The gateway."
)
@api_token_option
def batch(
    file: IO[bytes], from_line: int, run: str | None, show_all: bool, url: str, api_token_file: str | None
) -> None:
    """Send the lines of FILE (- is the standard input), 256 at a time, to POST /v1/batch, and print the verdicts of
    those refused, as JSON lines whose `number` is that of the line in FILE.

    A line without an idempotency_key gets one, made of the run's NAME, its number and its text. So a file can be sent
    again, whole or from a line: what has landed is not done again, for as long as the gateway keeps keys.

    Exit codes: 0 every line was accepted, 1 some were refused, 69 the gateway cannot be reached, 74 FILE cannot be read
    or verdicts cannot be printed, 130 Ctrl-C, 143 SIGTERM, 2 bad usage, or the gateway refuses all of it. When it ends
    early, the standard error says how to go on.
    """
    api_token = read_api_token(api_token_file)
    path = str(Path(file.name).resolve()) if file.fileno() and _size(file) is not None else None
    name = run or path or secrets.token_hex(8)
    sending = _Sending(file, from_line, os.fsencode(name), show_all=show_all)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        asyncio.run(sending.run(url, api_token))
    except (ApiError, OSError, KeyboardInterrupt) as error:
        again = "" if name == path else f" --run {shlex.quote(name)}"
        why = signal.Signals(error.args[0]).name if isinstance(error, KeyboardInterrupt) else error
        _say(f"fencepost batch: {why}", f"fencepost batch: go on with --from-line {sending.next_line}{again}")
        raise SystemExit(_exit_code(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    before = f" ({sending.before} of them had been done before)" if sending.before else ""
    _say(f"{sending.accepted} accepted{before}, {sending.refused} refused")
    if sending.refused:
        raise SystemExit(_REFUSED)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """End at once, also while a verdict cannot be printed: asyncio's own handler would wait for that."""
    raise KeyboardInterrupt(number)


def _exit_code(error: ApiError | OSError | KeyboardInterrupt) -> int:
    if isinstance(error, ApiError):
        return gateway.of_error(error)
    return _IO_FAILED if isinstance(error, OSError) else gateway.of_signal(error.args[0])


def _say(*lines: str) -> None:
    with contextlib.suppress(OSError):
        for line in lines:
            click.echo(line, err=True)


def _print(line: bytes) -> None:
    """Print a verdict. Where that fails, or a signal ends it, what is left is not tried again when the program ends."""
    try:
        click.echo(line)
    except (OSError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _size(file: IO[bytes]) -> int | None:
    found = os.fstat(file.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@dataclass
class _Sending:
    """A file on its way. `next_line`: the first one whose verdict is not printed; `name`: the run's."""

    file: IO[bytes]
    next_line: int
    name: bytes
    show_all: bool = field(kw_only=True)
    accepted: int = 0
    before: int = 0
    """Those of the accepted ones that an earlier run has done."""
    refused: int = 0
    _passed: int = 0
    """Bytes of the lines before the first one."""
    _sent: "deque[tuple[int, int]]" = field(default_factory=deque)
    """Numbers and sizes of lines that wait for their verdicts."""

    async def run(self, url: str, api_token: Token | None) -> None:
        size = _size(self.file)
        with click.progressbar(length=size or 0, label="sending", file=sys.stderr, hidden=not size) as bar:
            shown = 0
            async with (
                Client(url, token=api_token, decimals=True) as client,
                contextlib.aclosing(client.batch(self._lines())) as said,
            ):
                async for verdict in said:
                    shown += self._take(verdict) + self._passed
                    self._passed = 0
                    if shown >= _SHOWN_EVERY:
                        bar.update(shown)
                        shown = 0
            bar.update(shown)

    def _take(self, verdict: Verdict) -> int:
        """Print a verdict, if it is to be, and count it. Gives the size of its line."""
        number, size = self._sent.popleft()
        if self.show_all or verdict.error is not None:
            _print(dumps({**verdict.members, "number": number}))
        self.accepted += verdict.error is None
        self.before += verdict.error is None and verdict.replayed
        self.refused += verdict.error is not None
        self.next_line = number + 1
        return size

    def _lines(self) -> Iterator[bytes]:
        # A file of our own: the thread that waits in it holds its lock when the program ends, and closes click's.
        file, first = open(self.file.fileno(), "rb", closefd=False), self.next_line  # noqa: SIM115
        skipped = 0
        for raw in itertools.islice(file, first - 1):
            skipped, self._passed = skipped + 1, self._passed + len(raw)
        if skipped < first - 1:
            raise ValueError(f"--from-line {first}: {self.file.name} has {skipped} lines.")
        for number, raw in enumerate(file, first):
            if text := raw.strip(b" \t\r\n"):
                self._sent.append((number, len(raw)))
                yield _with_key(self.name, number, text)


def _with_key(name: bytes, number: int, text: bytes) -> bytes:
    """Give a line its key, and leave the rest of it as it stands. What is wrong with a line, the gateway says."""
    try:
        members = json.loads(text.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return text
    if not isinstance(members, dict) or not members or "idempotency_key" in members:
        return text
    key = hashlib.sha256(name + b"\n" + text).hexdigest()
    return b'{"idempotency_key":"%d-%b",%b' % (number, key.encode(), text[1:])
