"""A child process that does not outlive its parent. Only the standard library is used: `fencepost lock` does, too."""

import ctypes
import os
import signal
import sys

# Looked up at import: between fork and exec nothing may be loaded or allocated that could need a lock.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, with_signal: signal.Signals = signal.SIGTERM) -> None:
    """Ask Linux to signal this process when its parent ends, however it ends; exit if it already has.

    `parent` is the parent's pid as the parent knows it. The kernel means the parent's *thread*: the parent must fork
    from its main thread. Call it after any change of user, which clears the request. Raises OSError. Other systems have
    nothing like it: there a child of a parent that was killed goes on.
    """
    if _libc is not None and _libc.prctl(_PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)
