"""Signals and the terminal: the command's, as if `fencepost lock` were not there."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.cli.running import FENCEPOST, StartLock, environment, locks, written
from tests.support.servers import all_gone

from fencepost.testing.servers.processes import PATIENCE, descendants, eventually

pytestmark = [
    pytest.mark.long("holders, leaders and gateways that are paused or killed"),
]

UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
LOCK = ("env", "--default-signal", *FENCEPOST, "lock", "a")


async def test_a_signal_is_passed_to_the_command_which_decides(lock: StartLock, tmp_path: Path) -> None:
    names = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH", "CONT")
    traps = "; ".join(f"trap 'echo {name} >> signals' {name}" for name in names)
    running = lock("a", "sh", "-c", f"{traps}; echo > runs; {UNTIL_GO}; exit 4")
    await written(tmp_path / "runs")
    for number, name in enumerate(names, 1):
        running.signal(signal.Signals[f"SIG{name}"])
        assert await written(tmp_path / "signals", lines=number) == [*names[:number]]
    (tmp_path / "go").touch()
    assert await running.ended() == 4


async def test_signals_that_were_blocked_by_what_started_it_arrive(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The end of the command was not seen, and the lock kept; TERM did nothing."""
    blocked = {"prefix": ("env", "--block-signal=CHLD,TERM", "--ignore-signal=CHLD")}
    assert await lock("a", "sh", "-c", "exit 3", **blocked).ended() == 3
    running = lock("a", "sh", "-c", f"trap 'exit 5' TERM; echo > runs; {UNTIL_GO}", **blocked)
    await written(tmp_path / "runs")
    running.signal(signal.SIGTERM)
    assert await running.ended() == 5
    assert await locks(http) == []


async def test_the_lock_is_held_until_the_whole_group_has_ended(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """As in a crontab: TERM ends the shell, and what it runs goes on writing."""
    report = f"trap 'echo TERM >> signals' TERM; echo $$ >> pids; {UNTIL_GO}; $MINT >> minted"
    running = lock("a", "sh", "-c", 'echo $$ >> pids; sh -c "$0"; code=$?; exit $code', report)
    shell, _ = [int(pid) for pid in await written(tmp_path / "pids", lines=2)]
    running.signal(signal.SIGTERM)
    await written(tmp_path / "signals")
    await all_gone([shell])
    (tmp_path / "go").touch()
    await written(tmp_path / "minted")
    assert await running.ended() == 128 + 15
    assert await locks(http) == []


async def test_what_was_ignored_stays_ignored(lock: StartLock, tmp_path: Path) -> None:
    """As under nohup."""
    ignoring = "trap '' HUP INT; exec \"$@\""
    script = f"grep SigIgn /proc/self/status > ignored; echo > runs; {UNTIL_GO}"
    running = lock("a", "sh", "-c", script, prefix=("sh", "-c", ignoring, "sh"))
    await written(tmp_path / "runs")
    mask = int((await written(tmp_path / "ignored"))[0].split()[1], 16)
    assert mask & 0b11 == 0b11, "HUP and INT"
    running.signal(signal.SIGHUP)
    running.signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert await running.ended() == 0


class Screen:
    """A terminal, and what was printed on it."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def shows(self, text: str) -> None:
        async def there() -> bool:
            self._read()
            return text in self.shown

        try:
            await eventually(there, what=text)
        except TimeoutError:
            pytest.fail(f"{text!r} is not on the screen: {self.shown!r}")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nothing there, or hung up
            self.shown += os.read(self._master, 65536).decode(errors="replace")


@asynccontextmanager
async def at_a_terminal(
    *command: str, url: str, directory: Path
) -> AsyncIterator[tuple[Screen, subprocess.Popen[bytes]]]:
    """Run a command as the leader of a session with a terminal."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    # The first terminal that the leader of a session opens becomes the session's.
    opening = ("sh", "-c", 'exec "$@" 0<>"$0" 1>&0 2>&0', os.ttyname(slave))
    process = subprocess.Popen(  # noqa: ASYNC220 - it only starts it
        [*opening, *command],
        cwd=directory,
        env=environment(FENCEPOST_URL=url, PS1="ready> ", TERM="dumb"),
        start_new_session=True,
    )
    try:
        yield Screen(master), process
    finally:
        everything = [process.pid, *descendants(process.pid)]
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        os.close(master)
        os.close(slave)
        await all_gone(everything)


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.wait_for(asyncio.to_thread(process.wait), PATIENCE)


@pytest.mark.parametrize("reads", [True, False])
async def test_ctrl_c_ends_the_command_and_then_us_in_the_same_way(
    gateway_url: str, http: httpx.AsyncClient, tmp_path: Path, reads: bool
) -> None:
    command = (*LOCK, "sh", "-c", "read x; echo go on; exec sleep 60" if reads else "echo go on; exec sleep 60")
    async with at_a_terminal(*command, url=gateway_url, directory=tmp_path) as (screen, process):
        if reads:
            screen.type("x\n")
        await screen.shows("go on")
        screen.type("\x03")
        assert await ended(process) == -signal.SIGINT
        assert await locks(http) == []


async def test_ctrl_z_and_fg_and_a_second_read(gateway_url: str, http: httpx.AsyncClient, tmp_path: Path) -> None:
    async with at_a_terminal("bash", "--norc", "--noprofile", "-i", url=gateway_url, directory=tmp_path) as (
        screen,
        shell,
    ):
        await screen.shows("ready> ")
        fencepost = " ".join(FENCEPOST)
        screen.type(
            f"{fencepost} lock a --ttl 30 -- sh -c 'echo fir''st; read x; echo sec''ond $x; read y; echo th''ird $y'\n"
        )
        await screen.shows("first")
        screen.type("1\n")
        await screen.shows("second 1")
        screen.type("\x1a")
        await screen.shows("Stopped")
        screen.type("echo the shell''s\n")
        await screen.shows("the shells")
        assert len(await locks(http)) == 1, "it is still ours, and not renewed"
        screen.type("fg\n")
        screen.type("2\n")
        await screen.shows("third 2")
        screen.type("echo code $?; exit\n")
        await screen.shows("code 0")
        await ended(shell)
        assert await locks(http) == []


@pytest.mark.realtime
async def test_ctrl_z_beyond_the_ttl_loses_the_lock(gateway_url: str, tmp_path: Path, http: httpx.AsyncClient) -> None:
    """The command starts none itself: a shell that is stopped between vfork and exec of one does not show it."""
    async with at_a_terminal("bash", "--norc", "--noprofile", "-i", url=gateway_url, directory=tmp_path) as (screen, _):
        await screen.shows("ready> ")
        screen.type(f"{' '.join(FENCEPOST)} lock a --ttl 1.5 -- sh -c 'echo fir''st; exec sleep 600'\n")
        await screen.shows("first")
        screen.type("\x1a")
        await screen.shows("Stopped")

        async def free() -> bool:
            return not any(held["held"] for held in await locks(http))

        await eventually(free, what="the end of the lease")
        screen.type("fg\n")
        await screen.shows("lost a, the command was ended")
        screen.type("echo code $?\n")
        await screen.shows("code 79")
