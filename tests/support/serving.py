"""Running `fencepost serve` as a process, and making sure that nothing of it is left."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.interleave import eventually
from tests.support.processes import all_gone, descendants, mentioning

STARTS_WITHIN = 60.0  # seconds


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

    async def ended(self, *, within: float = 30.0) -> int:
        """Return the exit code once the process has ended."""

        async def code() -> tuple[int] | None:
            status = self.process.poll()
            return None if status is None else (status,)

        return (await eventually(code, within=within, what="the end of fencepost serve"))[0]

    def processes(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]


def launch(*arguments: str, errors: Path, prefix: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """Start `fencepost serve` with nothing of our own environment's settings. `prefix` is a command that runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
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


@asynccontextmanager
async def serving(directory: Path, *arguments: str, **variables: str) -> AsyncIterator[Gateway]:
    """Run the gateway on an embedded server in `directory`; afterwards nothing of it is left."""
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
        process.communicate(timeout=30)
        await all_gone(everything)
        await all_gone(list(mentioning(str(directory / "data"))))


def read_greeting(process: subprocess.Popen[str]) -> str:
    """Read what serve prints in one go: up to the line `try`, or to the end of its output."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("  try"):
            break
    return "".join(lines)


def refused(*arguments: str, directory: Path, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Run a serve that must fail; return its exit code and what it said. It says nothing on stdout."""
    process = launch(*arguments, errors=directory / "stderr", prefix=prefix, **variables)
    try:
        out, _ = process.communicate(timeout=STARTS_WITHIN)
    finally:
        process.kill()
    assert out == ""
    return process.returncode, (directory / "stderr").read_text()
