"""A command in a process group of its own: started, signalled, and ended with all that it has started.

The group is what can be ended: a shell that is killed leaves its children behind. The command is not reaped before
the end, so that its pid, which is the group's id, stays its own for as long as signals may be sent to it.

If we are killed ourselves the kernel sends the command SIGTERM (PR_SET_PDEATHSIG). That reaches the command itself
and not what it has started, nor a command that changes its user, such as sudo: the kernel then forgets the request.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fencepost.cli.locking.exit_codes import of_signal
from fencepost.client import Clock
from fencepost.server.ops.embedded.parent_death import die_with_parent

KILLED_WITHIN: Final = 5.0  # seconds that a killed process may take to go; one in a hung disk's hands takes longer
_INTERVAL: Final = 0.02  # seconds
_LONGEST_INTERVAL: Final = 0.5  # seconds: for what may go on for hours
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGQUIT)
"""What a shell makes its background commands ignore."""


class Child:
    """A running command. `ended` is set when it has ended, whatever it may have left running."""

    def __init__(self, process: subprocess.Popen[bytes], on_stop: Callable[[int], None]) -> None:
        self.group = process.pid
        self.ended = asyncio.Event()
        self._process = process
        self._on_stop = on_stop
        self._was_interrupted = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        handled: Iterable[signal.Signals],
        on_stop: Callable[[int], None],
    ) -> "Child":
        """Run a command, from the main thread. OSError if it cannot be.

        handled: the signals that we have handlers for. on_stop: called with the signal that has stopped the
        command. The caller calls `look` on each SIGCHLD.
        """
        parent = os.getpid()
        handled = list(handled)
        # A handler of ours must not run in the child: it would take the child's signal for ours.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)

        def prepare() -> None:
            die_with_parent(parent)
            for number in handled:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            process = subprocess.Popen(  # noqa: S603 - running the user's command is what we are for
                list(command),
                env=dict(environment),
                process_group=0,
                preexec_fn=prepare,  # noqa: PLW1509 - as die_with_parent needs it
                close_fds=False,  # descriptors that the shell opened for the command are the command's
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return cls(process, on_stop)

    def look(self) -> None:
        """Find out whether it was stopped or has ended."""
        if self.ended.is_set():
            return
        # A wait for stops alone fails once the child has ended: so wait for both, and reap nothing.
        state = os.waitid(os.P_PID, self.group, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return
        if state.si_code == os.CLD_STOPPED:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.group, os.WSTOPPED | os.WNOHANG)  # so that it is reported once
            self._on_stop(state.si_status)
        else:
            # Where the terminal was lent, Ctrl-C reaches the command and not us.
            killed_by = state.si_status if state.si_code != os.CLD_EXITED else state.si_status - of_signal(0)
            self._was_interrupted |= killed_by in _INTERRUPTS
            self.ended.set()

    def send(self, number: int) -> None:
        """Send a signal to the group. One that has ended, or whose processes are another user's, gets none."""
        self._was_interrupted |= number in _INTERRUPTS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    async def all_ended(self, clock: Clock, grace: float) -> None:
        """Return when the command and all processes of its group have ended: until then they need the lock.

        After INT or QUIT, of which a shell's background commands know nothing, what the command has left gets TERM, and
        KILL after `grace` seconds.
        """
        await self.ended.wait()
        pause, ending = _INTERVAL, False
        while members(self.group):
            if self._was_interrupted and not ending:
                ending = True
                await self.terminate(clock, clock.now() + grace)
            else:
                await clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_INTERVAL)

    async def terminate(self, clock: Clock, deadline: float) -> list[int]:
        """End the whole group: TERM, and KILL at the deadline; past the deadline, KILL at once.

        Returns the pids of those that could not be ended.
        """
        if clock.now() < deadline:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # one that is stopped gets its SIGTERM only when it goes on
            await self._gone(clock, deadline)
        self.send(signal.SIGKILL)
        left = await self._gone(clock, clock.now() + KILLED_WITHIN)
        self.look()
        return left

    def exit_code(self) -> int:
        """Reap it, once it has ended; 128 + n if signal n has killed it."""
        code = self._process.wait()
        return code if code >= 0 else of_signal(-code)

    @property
    def interrupted(self) -> bool:
        """Whether it has ended, killed by SIGINT."""
        return self._process.returncode == -signal.SIGINT

    async def _gone(self, clock: Clock, deadline: float) -> list[int]:
        while (left := members(self.group)) and clock.now() < deadline:
            await clock.sleep(_INTERVAL)
        return left


def members(group: int) -> list[int]:
    """Return the pids of the group's processes that run. Zombies do not."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_bytes()
        except OSError:  # it has just ended, or is hidden from us
            continue
        state, _parent, of = status.rpartition(b")")[2].split()[:3]
        if int(of) == group and state not in b"ZX":
            found.append(int(entry.name))
    return found
