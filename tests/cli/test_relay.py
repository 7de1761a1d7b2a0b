"""What stands between signals and the command, in this very process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fencepost.cli.locking.child import Child, members
from fencepost.cli.locking.relay import Relay
from fencepost.client import SystemClock
from fencepost.testing.servers.waiting import eventually


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
