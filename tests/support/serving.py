"""Running `fencepost serve` as a process, and making sure that nothing of it is left."""

import asyncio
import atexit
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.support.processes import all_gone

from fencepost.testing.servers.processes import PATIENCE, descendants, eventually, mentioning, server_directory

STARTS_WITHIN = 2 * PATIENCE  # seconds

workers = pytest.mark.parametrize(
    "workers", [pytest.param("1", marks=pytest.mark.long("tests with one worker process")), "2"]
)
"""For tests of the processes of `fencepost serve`: with several, the parent has more to do."""


@dataclass
class Gateway:
    """A running `fencepost serve`."""

    process: subprocess.Popen[str]
    url: str
    greeting: str
    errors: Path

    def interrupt(self) -> None:
        """Press Ctrl-C: a terminal signals the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    async def ended(self, *, within: float = PATIENCE) -> int:
        """Return the exit code once the process has ended."""

        async def code() -> tuple[int] | None:
            status = self.process.poll()
            return None if status is None else (status,)

        return (await eventually(code, within=within, what="the end of fencepost serve"))[0]

    def processes(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]


def launch(*arguments: str, errors: Path, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """Start `fencepost serve` with nothing of our own environment's settings. `prefix` is a command that runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FENCEPOST_", "PG"))}
    with errors.open("w") as stderr:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "fencepost", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment | variables | {"TMPDIR": str(errors.parent)},
            start_new_session=True,
        )


@cache
def demo_data() -> Path:
    """Make the data directory of a gateway that has run once and has ended, with the demo table: a copy of it starts in
    half the time. It is made once, and removed when the tests end.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    directory = stack.enter_context(server_directory())
    given = ("--port", "0", "--data-dir", str(directory / "data"), "--demo")
    with launch(*given, errors=directory / "stderr") as process:
        greeting = read_greeting(process)
        assert "http://" in greeting, (greeting, (directory / "stderr").read_text())
        process.terminate()
    assert process.returncode == 0, (directory / "stderr").read_text()
    return directory / "data"


def copy_demo_data(to: Path) -> None:
    """Copy it, owners and all: PostgreSQL may run as another user."""
    subprocess.run(["cp", "--archive", demo_data(), to], check=True)


@asynccontextmanager
async def serving(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Gateway]:
    """Run the gateway on an embedded server in `directory`; afterwards nothing of it is left.

    Where there is no data yet it begins with a copy of `demo_data`.
    """
    own = "--database-url" not in arguments and "FENCEPOST_DATABASE_URL" not in variables
    if own and not (directory / "data").exists():
        await asyncio.to_thread(copy_demo_data, directory / "data")
    async with serving_as_it_is(directory, *arguments, **variables) as gateway:
        yield gateway


@asynccontextmanager
async def serving_as_it_is(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Gateway]:
    """Run it on the data that `directory` has: on none, as at a first start, it makes its own."""
    errors = directory / "stderr"
    given = ("--port", "0", "--data-dir", str(directory / "data"), "--demo", *arguments)
    process = launch(*given, errors=errors, prefix=(), **variables)
    try:
        greeting = await asyncio.wait_for(asyncio.to_thread(read_greeting, process), STARTS_WITHIN)
        found = re.search(r"http://\S+", greeting)
        assert found, f"no greeting: {greeting!r} {errors.read_text()}"
        yield Gateway(process, found[0], greeting, errors)
    finally:
        everything = [process.pid, *descendants(process.pid)]
        process.kill()
        process.communicate(timeout=PATIENCE)
        await all_gone(everything)
        await all_gone(list(mentioning(str(directory / "data"))))


def read_greeting(process: subprocess.Popen[str]) -> str:
    """Read what serve prints in one go: up to the line `try` or `demo`, or to the end of its output."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(("  try", "  demo")):
            break
    return "".join(lines)


def refused(*arguments: str, directory: Path, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Run a serve that must fail; return its exit code and what it printed to stderr. It prints nothing to stdout."""
    process = launch(*arguments, errors=directory / "stderr", prefix=prefix, **variables)
    try:
        out, _ = process.communicate(timeout=STARTS_WITHIN)
    finally:
        process.kill()
    assert out == ""
    return process.returncode, (directory / "stderr").read_text()
