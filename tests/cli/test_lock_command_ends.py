"""`fencepost lock` when the lock is lost, and when a signal comes."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from tests.cli.running import FENCEPOST, StartLock, environment, locks, release, variables_in, waiters, written
from tests.support.servers import all_gone

from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import PATIENCE, alive, descendants, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

# A lock that is lost while the command runs: the command, and all that it has started, is ended in time.

ENV = "env > env.new && mv env.new env"
FOR_EVER = "while :; do sleep 0.02; done"


async def pids(directory: Path, count: int) -> list[int]:
    return [int(pid) for pid in await written(directory / "pids", lines=count)]


async def test_a_lost_lease_ends_the_process_group(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    obeys = f"sh -c 'trap \"echo TERM >> signals; exit\" TERM; echo $$ >> pids; {FOR_EVER}'"
    running = lock("a", "--ttl", "12", "sh", "-c", f"{obeys} & {obeys} & echo $$ >> pids; {ENV}; wait")
    group = await pids(tmp_path, 3)
    await release(http, await variables_in(tmp_path / "env"))
    assert await running.ended() == 79
    assert not any(alive(pid) for pid in group), "ended before we are"
    assert await written(tmp_path / "signals", lines=2) == ["TERM", "TERM"]
    assert running.lines[0].startswith("fencepost lock: lost a, the command was ended: ")
    assert len(running.lines) == 1


async def test_a_grandchild_that_ignores_term_is_killed_though_the_command_has_gone(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    ignores = f"sh -c 'trap \"echo TERM >> signals\" TERM; echo $$ >> pids; {FOR_EVER}'"
    running = lock("a", "--ttl", "12", "sh", "-c", f"{ignores} & echo $$ >> pids; {ENV}; {FOR_EVER}")
    group = await pids(tmp_path, 2)
    await release(http, await variables_in(tmp_path / "env"))
    assert await running.ended() == 79
    assert not any(alive(pid) for pid in group)
    assert await written(tmp_path / "signals") == ["TERM"], "it was asked first"


async def test_the_exit_code_can_be_chosen_and_the_successor_is_named(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "12", "--lost-exit-code", "42", "sh", "-c", f"{ENV}; {FOR_EVER}")
    seen = await variables_in(tmp_path / "env")
    successor = lock("a", "--owner", "successor-1", "sh", "-c", FOR_EVER)
    await waiters(http, 1)
    await release(http, seen)
    assert await running.ended() == 42
    assert "successor-1" in running.printed
    assert successor.process.poll() is None


@pytest.mark.realtime
async def test_the_command_is_dead_before_another_gets_the_lock(
    lock: StartLock, http: httpx.AsyncClient, gateway_url: str, tmp_path: Path
) -> None:
    """The holder's network falls silent; its command ignores TERM, and writes down when it was last alive."""
    lives = "trap '' TERM; while :; do date +%s%N >> life; sleep 0.01; done"
    with Link.to(gateway_url) as link, ExitStack() as faults:
        old = lock("a", "--ttl", "2", "sh", "-c", lives, url=link.url)
        await written(tmp_path / "life", lines=3)
        successor = lock("a", "sh", "-c", f"{ENV}; {FOR_EVER}")
        await waiters(http, 1)
        faults.enter_context(partitioned(link))
        lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
        granted_at = datetime.fromisoformat((await http.get(f"/v1/leases/{lease}")).json()["granted_at"]).timestamp()
        last_life = int((tmp_path / "life").read_text().split()[-1]) / 1e9
        assert last_life < granted_at
        assert last_life > granted_at - 2, "it was not ended too early, either: the grace is used"
        assert await old.ended() == 79
        assert "could not be renewed in time" in old.printed
        assert len(old.lines) == 1
        assert successor.process.poll() is None


@pytest.mark.realtime
async def test_a_release_that_fails_is_a_warning_and_the_exit_code_stays(
    lock: StartLock, gateway_url: str, tmp_path: Path
) -> None:
    with Link.to(gateway_url) as link, ExitStack() as faults:
        script = "echo > runs; until [ -e go ]; do sleep 0.05; done; exit 3"
        running = lock("a", "--ttl", "8", "sh", "-c", script, url=link.url)
        await written(tmp_path / "runs")
        faults.enter_context(partitioned(link))
        (tmp_path / "go").touch()
        assert await running.ended() == 3
        assert "of a could not be released" in running.printed
        assert len(running.lines) == 1


async def test_a_command_dies_when_fencepost_lock_is_killed(lock: StartLock, tmp_path: Path) -> None:
    running = lock("a", "sh", "-c", f"trap 'echo TERM >> signals; exit' TERM; echo $$ >> pids; {FOR_EVER}")
    group = await pids(tmp_path, 1)
    running.process.kill()
    await running.ended()
    await all_gone(group)
    assert await written(tmp_path / "signals") == ["TERM"]


async def expired(http: httpx.AsyncClient, lease: str) -> None:
    async def over() -> bool:
        return (await http.get(f"/v1/leases/{lease}")).status_code == 410

    await eventually(over, what=f"the end of lease {lease}")


@pytest.mark.realtime
async def test_paused_beyond_its_ttl_it_kills_the_command_at_once(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Only `fencepost lock` is stopped. There is no time left for a grace: another client may have the lock."""
    script = f"trap 'echo TERM >> signals' TERM; echo $$ >> pids; {ENV}; {FOR_EVER}"
    running = lock("a", "--ttl", "1.5", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    running.signal(signal.SIGSTOP)
    await expired(http, lease)
    assert alive(group[0]), "no process could end it meanwhile: the fence is for this"
    running.signal(signal.SIGCONT)
    assert await running.ended() == 79
    await all_gone(group)
    assert not (tmp_path / "signals").exists()


@pytest.mark.realtime
async def test_paused_together_with_its_command_it_ends_the_command_before_it_goes_on(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "1.5", "sh", "-c", f"echo $$ >> pids; {ENV}; while :; do echo >> life; done")
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    await written(tmp_path / "life")
    running.signal(signal.SIGSTOP)
    os.killpg(group[0], signal.SIGSTOP)
    await expired(http, lease)
    before = (tmp_path / "life").read_text()
    running.signal(signal.SIGCONT)  # which is passed on, if the lease is still held
    assert await running.ended() == 79
    await all_gone(group)
    assert (tmp_path / "life").read_text() == before, "it did nothing any more"


async def test_paused_within_its_ttl_both_go_on(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    script = f"echo $$ >> pids; {ENV}; until [ -e go ]; do echo >> life; sleep 0.02; done"
    running = lock("a", "--ttl", "20", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    await variables_in(tmp_path / "env")
    await written(tmp_path / "life")
    running.signal(signal.SIGSTOP)
    os.killpg(group[0], signal.SIGSTOP)
    before = len(await written(tmp_path / "life"))
    running.signal(signal.SIGCONT)
    await written(tmp_path / "life", lines=before + 5)
    (tmp_path / "go").touch()
    assert await running.ended() == 0
    assert await locks(http) == []


@pytest.mark.realtime
async def test_a_command_that_ended_while_the_lease_was_not_renewed_counts_as_lost(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It is not known whether it ended before the lease did."""
    script = f"echo $$ >> pids; {ENV}; until [ -e go ]; do sleep 0.02; done"
    running = lock("a", "--ttl", "1.5", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    running.signal(signal.SIGSTOP)
    await expired(http, lease)
    (tmp_path / "go").touch()
    await all_gone(group)
    running.signal(signal.SIGCONT)
    assert await running.ended() == 79


async def test_a_stopped_command_is_asked_to_end_too(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    script = f"trap 'echo TERM >> signals; exit' TERM; echo $$ >> pids; {ENV}; {FOR_EVER}"
    running = lock("a", "--ttl", "12", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    seen = await variables_in(tmp_path / "env")
    os.killpg(group[0], signal.SIGSTOP)
    await release(http, seen)
    assert await running.ended() == 79
    assert await written(tmp_path / "signals") == ["TERM"]


# Signals and the terminal: the command's, as if `fencepost lock` were not there.

UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


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
    lock = ("env", "--default-signal", *FENCEPOST, "lock", "a")
    command = (*lock, "sh", "-c", "read x; echo go on; exec sleep 60" if reads else "echo go on; exec sleep 60")
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
