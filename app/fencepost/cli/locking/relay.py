"""The signals that we get on behalf of the command, and the job control that a shell expects of us.

Before the command runs, a signal that asks us to end ends the wait for the lock. From then on signals are the
command's: what they do to it decides how we end. A signal that was ignored when we were started (nohup, a shell's
background job) stays ignored, by us and by the command.

Ctrl-Z stops the command. We see that, and stop our own process group, which is what the shell waits for. When the
shell lets us go on, so may the command, if the lease is still alive: it was not renewed meanwhile.
"""

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from fencepost.cli.locking.child import Child
from fencepost.cli.locking.terminal import Terminal

_ENDING: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
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
