"""Machines that run a recipe's `fencepost lock` line: a PATH with a psql that can be held up before it writes."""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.running import Running, whole_lines, written
from tests.support.recipes import surroundings
from tests.support.servers import all_gone

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import descendants, eventually

# Where a test wants it, psql waits before its first UPDATE: the pause between reading and writing.
_PSQL = """#!/bin/sh
case "$*" in *UPDATE*) echo >> {here}/reached; until [ -e {here}/go ]; do sleep 0.02; done;; esac
exec {psql} "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A machine that runs one command line; `reached` has a line for each write that began."""

    running: Running
    directory: Path

    async def is_about_to_write(self) -> None:
        """Return once its script has read, and stands before its write."""
        await written(self.directory / "reached")

    def let_it_write(self) -> None:
        """End the pause before its writes."""
        (self.directory / "go").touch()

    def pause_lock(self) -> None:
        """SIGSTOP `fencepost lock`, and only that: its command goes on, and nothing renews or ends it."""
        self.running.signal(signal.SIGSTOP)

    def resume_lock(self) -> None:
        """SIGCONT it."""
        self.running.signal(signal.SIGCONT)

    def die(self) -> None:
        """SIGKILL everything at once, as a machine that loses power."""
        for pid in (self.running.process.pid, *descendants(self.running.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def says(self, text: str) -> None:
        """Return once it has printed this to stderr."""

        async def there() -> bool:
            return any(text in line for line in whole_lines(self.running.errors))

        await eventually(there, what=f"{text!r} in {self.running.printed!r}")


@dataclass(frozen=True)
class Machines:
    """Where machines are: the gateway and the database that they use, and a directory for what they leave."""

    server: PostgresServer
    database: str
    gateway: str
    directory: Path

    @asynccontextmanager
    async def machine(self, name: str, command: str, *, waits: bool = False) -> AsyncIterator[Machine]:
        """Run a command line on one, until the block ends. waits: its psql waits for `let_it_write`."""
        here = self.directory / name
        here.mkdir()
        variables = surroundings(self.server, self.database, FENCEPOST_URL=self.gateway, HOST=name)
        if waits:
            shim = here / "psql"
            shim.write_text(_PSQL.format(here=shlex.quote(str(here)), psql=self.server.bin_dir / "psql"))
            shim.chmod(0o755)
            variables["PATH"] = f"{here}:{variables['PATH']}"
        errors = here / "stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(  # noqa: ASYNC220 - it only starts it
                ["env", "--default-signal", "bash", "-c", f"exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
                start_new_session=True,
            )
        machine = Machine(Running(process, errors), here)
        try:
            yield machine
        finally:
            everything = [process.pid, *descendants(process.pid)]
            machine.die()
            await asyncio.to_thread(process.communicate)
            await all_gone(everything)
