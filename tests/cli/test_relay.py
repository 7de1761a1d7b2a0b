"""What stands between signals and the command, in this very process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.manual_clock import ManualClock

from fencepost.cli.running import Child, Relay, members
from fencepost.client import SystemClock
from fencepost.testing.servers.processes import PATIENCE, eventually


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@asynccontextmanager
async def running(*command: str, may_go_on: bool) -> AsyncIterator[Child]:
    relay = Relay()
    with relay.handle_signals():
        child = relay.start(command, dict(os.environ), may_go_on=lambda: may_go_on)
        try:
            yield child
        finally:
            clock = SystemClock()
            assert await child.terminate(clock, clock.now() - 1) == []
            child.exit_code()


async def stopped(child: Child) -> None:
    child.send(signal.SIGSTOP)

    async def stands() -> bool:
        return state(child.group) == "T"

    await eventually(stands, what="the command stopped")


async def test_a_stopped_command_goes_on_when_we_do() -> None:
    async with running("sleep", "60", may_go_on=True) as child:
        await stopped(child)
        os.kill(os.getpid(), signal.SIGCONT)

        async def goes_on() -> bool:
            return state(child.group) == "S"

        await eventually(goes_on, what="the command going on")


async def test_a_stopped_command_stays_stopped_when_the_lock_is_lost() -> None:
    async with running("sleep", "60", may_go_on=False) as child:
        await stopped(child)
        answer = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, answer.set)  # handled after SIGCONT
        os.kill(os.getpid(), signal.SIGCONT)
        os.kill(os.getpid(), signal.SIGALRM)
        await answer.wait()
        assert asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)
        assert state(child.group) == "T"


async def test_a_zombie_is_no_member_of_its_group() -> None:
    async with running("sh", "-c", "sleep 60 & exit 0", may_go_on=True) as child:
        await child.ended.wait()
        left = members(child.group)
        assert len(left) == 1
        assert child.group not in left


async def group_has(child: Child, count: int) -> None:
    async def so_many() -> bool:
        return len(members(child.group)) == count

    await eventually(so_many, what=f"{count} processes of the command")


async def test_what_the_command_has_left_in_its_group_is_waited_for(tmp_path: Path) -> None:
    clock, go = ManualClock(), tmp_path / "go"
    async with running("sh", "-c", f"(until [ -e {go} ]; do sleep 0.02; done) & exit 0", may_go_on=True) as child:
        ended = asyncio.create_task(child.all_ended(clock, 5))
        await child.ended.wait()
        await clock.advance(10)
        assert not ended.done()
        go.touch()
        await group_has(child, 0)
        await clock.advance(10)
        assert ended.done()


@pytest.mark.parametrize("end", ["wait", "ulimit -c 0; kill -INT $$", "ulimit -c 0; kill -QUIT $$", "exit 130"])
async def test_an_interrupt_leaves_no_background_command(end: str) -> None:
    """A shell makes them ignore INT and QUIT; and Ctrl-C at a terminal that was lent does not come to us."""
    async with running("env", "--default-signal", "sh", "-c", f"sleep 600 & {end}", may_go_on=True) as child:
        if end == "wait":
            await group_has(child, 2)
            child.send(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await child.all_ended(SystemClock(), PATIENCE)
        assert members(child.group) == []
