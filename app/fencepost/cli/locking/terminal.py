"""The controlling terminal, lent to the command's process group when it needs it.

A terminal belongs to one process group at a time; a process of another one that reads from it is stopped (SIGTTIN),
as is one that changes its modes (SIGTTOU). So we wait for that, lend the terminal if it is ours, and let the command
go on. A command that only prints never takes it, and Ctrl-C then reaches us, who pass it on.
"""

import contextlib
import os
import signal
from typing import Self


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
