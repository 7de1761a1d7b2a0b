"""A command that runs while we hold a lock: its processes, its terminal, the signals that are passed on."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Self

from fencepost.cli.gateway import of_signal
from fencepost.client import Clock
from fencepost.server.ops.parent_death import die_with_parent

# A command in a process group of its own: started, signalled, and ended with all that it has started.
#
# The group is what can be ended: a shell that is killed leaves its children behind. The command is not reaped before
# the end, so that its pid, which is the group's id, stays its own for as long as signals may be sent to it.
#
# If we are killed ourselves the kernel sends the command SIGTERM (PR_SET_PDEATHSIG). That reaches the command itself
# and not what it has started, nor a command that changes its user, such as sudo: the kernel then forgets the request.

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
        stdin: IO[bytes] | None = None,
    ) -> "Child":
        """Run a command, from the main thread. OSError if it cannot be.

        handled: the signals that we have handlers for. on_stop: called with the signal that has stopped the
        command. stdin: a file that it reads, instead of our standard input. The caller calls `look` on each SIGCHLD.
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
                stdin=stdin,
                process_group=0,
                preexec_fn=prepare,  # noqa: PLW1509 - as die_with_parent needs it
                close_fds=False,  # descriptors that the shell opened for the command are the command's
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return cls(process, on_stop)

    def look(self) -> None:
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


# The controlling terminal, lent to the command's process group when it needs it.
#
# A terminal belongs to one process group at a time; a process of another one that reads from it is stopped (SIGTTIN),
# as is one that changes its modes (SIGTTOU). So we wait for that, lend the terminal if it is ours, and let the command
# go on. A command that only prints never takes it, and Ctrl-C then reaches us, who pass it on.


class Terminal:
    """Ours, if we have one. It may be hung up at any time: nothing here raises."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._lent = False

    @classmethod
    def open_controlling(cls) -> Self:
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:  # there is none, as under cron
            return cls(None)

    @property
    def exists(self) -> bool:
        return self._descriptor is not None

    def lend(self, group: int) -> bool:
        """Make a group the one that reads from the terminal, if it is ours now."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) == os.getpgrp():
                os.tcsetpgrp(self._descriptor, group)
                self._lent = True
                return True
        return False

    def lend_again(self, group: int) -> None:
        """Lend it after a pause, in which a shell has used it, to a group that had it before."""
        if self._lent:
            self.lend(group)

    def take_back(self, group: int) -> None:
        if self._descriptor is None or not self._lent:
            return
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # which it would stop us with
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) == group:
                os.tcsetpgrp(self._descriptor, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# The signals that we get on behalf of the command, and the job control that a shell expects of us.
#
# Before the command runs, a signal that asks us to end ends the wait for the lock. From then on signals are the
# command's: what they do to it decides how we end. A signal that was ignored when we were started (nohup, a shell's
# background job) stays ignored, by us and by the command.
#
# Ctrl-Z stops the command. We see that, and stop our own process group, which is what the shell waits for. When the
# shell lets us go on, so may the command, if the lease is still alive: it was not renewed meanwhile.

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FOR_GOOD: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""What ends a program for good, and is not, as SIGHUP, something that a command may take for news."""
_PASSED: Final = (*_ENDING, signal.SIGWINCH, signal.SIGCONT)
_STOPPING: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NEEDS_TERMINAL: Final = (signal.SIGTTIN, signal.SIGTTOU)


class Relay:
    """Stands between the signals, the terminal and the command. Belongs to the event loop of the main thread."""

    def __init__(self) -> None:
        self.stopped_by: int | None = None
        """The signal that ended the wait."""
        self._terminal = Terminal(None)
        self._child: Child | None = None
        self._asked_to_end = False
        self._may_go_on: Callable[[], bool] = lambda: True
        self._handled: list[signal.Signals] = []

    @property
    def has_terminal(self) -> bool:
        return self._terminal.exists

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle signals until the block ends. One that ends the wait cancels the current task."""
        loop = asyncio.get_running_loop()
        waiting = asyncio.current_task(loop)
        assert waiting is not None  # noqa: S101 - for the type
        self._terminal = Terminal.open_controlling()
        for number in _PASSED:
            self._handle(number, functools.partial(self._on_signal, number, waiting))
        loop.add_signal_handler(signal.SIGCHLD, self._look)
        try:
            yield
        finally:
            self.take_back_terminal()
            self._terminal.close()
            for number in (*self._handled, signal.SIGCHLD):
                loop.remove_signal_handler(number)

    def start(self, command: Sequence[str], environment: Mapping[str, str], may_go_on: Callable[[], bool]) -> Child:
        """Run the command, whose signals ours are from now on. OSError if it cannot be run.

        may_go_on: asked before a command that was stopped is let go on.
        """
        self._may_go_on = may_go_on
        self._handle(signal.SIGTSTP, self._pass_stop)
        self._child = Child.start(command, environment, handled=self._handled, on_stop=self._on_command_stopped)
        return self._child

    def command_ended(self) -> bool:
        """The command has ended, and signals are about our wait again. False: we were asked to end meanwhile."""
        self._child = None
        if signal.SIGTSTP in self._handled:
            self._handled.remove(signal.SIGTSTP)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        return not self._asked_to_end

    def take_back_terminal(self) -> None:
        if self._child is not None:
            self._terminal.take_back(self._child.group)

    def _handle(self, number: signal.Signals, handler: Callable[[], None]) -> None:
        if signal.getsignal(number) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, handler)
            if number not in self._handled:
                self._handled.append(number)

    def _on_signal(self, number: signal.Signals, waiting: asyncio.Task[object]) -> None:
        if self._child is None:
            if number in _ENDING and self.stopped_by is None:
                self.stopped_by = number
                waiting.cancel()
        elif number == signal.SIGCONT:
            self._go_on(self._child)
        else:
            self._asked_to_end = self._asked_to_end or number in _FOR_GOOD
            self._child.send(number)

    def _pass_stop(self) -> None:
        if self._child is not None:
            self._child.send(signal.SIGTSTP)

    def _look(self) -> None:
        if self._child is not None:
            self._child.look()

    def _on_command_stopped(self, number: int) -> None:
        """The command was stopped: lend it what it needs, or stop as it did."""
        child = self._child
        if child is None or number not in _STOPPING or not self._terminal.exists:
            return
        if number in _NEEDS_TERMINAL and self._terminal.lend(child.group):
            self._go_on(child)
            return
        self._stop_ourselves(number)
        # The kernel does not stop an orphaned process group. Then the command must not stay stopped either.
        if number == signal.SIGTSTP:
            self._go_on(child)

    def _go_on(self, child: Child) -> None:
        if self._may_go_on():
            self._terminal.lend_again(child.group)
            child.send(signal.SIGCONT)

    def _stop_ourselves(self, number: int) -> None:
        """Stop our process group; returns when it was continued."""
        loop = asyncio.get_running_loop()
        handled = signal.SIGTSTP in self._handled
        if handled:
            loop.remove_signal_handler(signal.SIGTSTP)
        os.killpg(os.getpgrp(), number)
        if handled:
            loop.add_signal_handler(signal.SIGTSTP, self._pass_stop)
