"""Directories of servers: in memory where there is room, and open to the user that PostgreSQL runs as.

A directory belongs to the process that made it, which holds a lock (flock) on it until it ends. The kernel drops the
lock of a process that was killed; the next process that makes a directory then removes the one that was left. The lock
and not a pid says whether the owner lives: containers may share /dev/shm and /tmp, and do not see each other's pids.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it has a name of its own, by mkdtemp
_MEMORY_NEEDED: Final = 2 * 1024**3  # bytes; a container's default is 64 MiB
_PREFIX: Final = "fencepost-servers-"
_locks: Final[dict[Path, int]] = {}
"""The open directories whose locks this process holds."""


def owned_directory(prefix: str, parent: Path) -> Path:
    """Make a directory of this process with a name of its own, and remove those whose processes have ended.

    `remove_directory` removes it; so does the next process that calls this function, once this one has ended.
    """
    _remove_what_killed_runs_left(prefix, parent)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process has removed it before it was locked
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            _locks[directory] = lock
            return directory
        os.close(lock)


def remove_directory(directory: Path) -> None:
    """Remove a directory that `owned_directory` or `new_directory` made, with all that is in it."""
    shutil.rmtree(directory)
    if directory in _locks:
        os.close(_locks.pop(directory))


def _remove_what_killed_runs_left(prefix: str, parent: Path) -> None:
    for directory in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is another user's, or was removed meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # its owner lives
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def new_directory() -> Path:
    """Make a directory that other users can walk through. The caller removes it, by `remove_directory`."""
    # Not tmp_path: its parents are 0700, and as root PostgreSQL runs as another user.
    if _MEMORY.is_dir():
        _remove_what_killed_runs_left(_PREFIX, _MEMORY)  # they may be what leaves no room
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED
    directory = owned_directory(_PREFIX, _MEMORY if in_memory else Path(tempfile.gettempdir()))
    directory.chmod(0o755)
    return directory


@contextmanager
def server_directory() -> Iterator[Path]:
    """Give such a directory, and remove it afterwards."""
    directory = new_directory()
    try:
        yield directory
    finally:
        remove_directory(directory)
