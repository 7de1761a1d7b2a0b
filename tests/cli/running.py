"""`fencepost lock` as a process, and what a test wants to know of it and of its command."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.support.servers import exit_code

from fencepost.testing.servers.processes import PATIENCE, eventually

FENCEPOST = (sys.executable, "-m", "fencepost")


@dataclass
class Running:
    """A running `fencepost lock`, a session of its own."""

    process: subprocess.Popen[str]
    errors: Path

    async def ended(self, *, within: float = PATIENCE) -> int:
        """Return the exit code, -n for a death by signal n."""
        return await exit_code(self.process, within=within, what=f"fencepost lock, which printed {self.printed!r}")

    async def output(self) -> str:
        """Return what was printed to stdout, up to its end."""
        assert self.process.stdout is not None
        return await asyncio.to_thread(self.process.stdout.read)

    @property
    def printed(self) -> str:
        """What was printed to stderr so far."""
        return self.errors.read_text()

    @property
    def lines(self) -> list[str]:
        """What `fencepost lock` itself printed to stderr; a shell prints there what was killed."""
        verbs = ("lock", "elect", "work")
        return [line for line in self.printed.splitlines() if line.startswith(tuple(f"fencepost {v}: " for v in verbs))]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


StartLock = Callable[..., Running]


def start_lock(
    *arguments: str,
    errors: Path,
    directory: Path,
    url: str,
    stdin: int = subprocess.DEVNULL,
    pass_fds: tuple[int, ...] = (),
    prefix: tuple[str, ...] = (),
    verb: str = "lock",
) -> Running:
    """Run it, with nothing of our own environment's settings. `prefix` is a command that runs it, `verb` its name.

    In a script $MINT is `fencepost mint`.
    """
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            # Under nohup, or as a background job, signals are ignored, and stay so: not what these tests are about.
            ["env", "--default-signal", *prefix, *FENCEPOST, verb, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=directory,
            env=environment(FENCEPOST_URL=url),
            start_new_session=True,
            pass_fds=pass_fds,
        )
    return Running(process, errors)


def environment(**variables: str) -> dict[str, str]:
    """Give our own environment without settings, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FENCE_", "FENCEPOST_"))}
    return kept | {"MINT": f"{' '.join(FENCEPOST)} mint"} | variables


async def written(path: Path, *, lines: int = 1, within: float = PATIENCE) -> list[str]:
    """Return a file's lines once there are so many."""

    async def enough() -> list[str] | None:
        found = whole_lines(path)
        return found if len(found) >= lines else None

    return await eventually(enough, within=within, what=f"{lines} lines in {path.name}")


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that another process may be writing to; none if there is no file yet."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


async def variables_in(path: Path) -> dict[str, str]:
    """Return our variables, which `env > path.new; mv path.new path` wrote."""
    lines = await written(path)
    return dict(line.split("=", 1) for line in lines if line.startswith(("FENCE_", "FENCEPOST_")))


async def release(http: httpx.AsyncClient, variables: Mapping[str, str]) -> None:
    """Release a command's lease behind its back."""
    lease, secret = variables["FENCEPOST_LEASE"], variables["FENCEPOST_LEASE_SECRET"]
    answer = await http.delete(f"/v1/leases/{lease}", headers={"X-Lease-Secret": secret})
    assert answer.status_code == 204


async def locks(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/v1/locks")).json()
    return found


async def waiters(http: httpx.AsyncClient, count: int) -> None:
    """Return once so many wait for the first lock."""

    async def enough() -> bool:
        held = await locks(http)
        return bool(held) and len(held[0]["waiters"]) >= count

    await eventually(enough, what=f"{count} waiters")
