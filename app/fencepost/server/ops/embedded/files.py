"""Opens files of a data directory so that they are in it.

As root we write into a directory that belongs to the account of PostgreSQL. A link that this account puts there must
not lead us to a file that it may not write itself: neither a symbolic link in the place of a file or directory, nor
a hard link. Nor may a pipe make us wait.
"""

import errno
import os
import stat
from pathlib import Path

from fencepost.server.ops.embedded.process import EmbeddedServerError

_NO_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)


def open_inside(directory: Path, name: str, flags: int) -> int:
    """Open a file of `directory`, or make a private one (O_CREAT); `name` may have directories in it. The caller closes
    the descriptor. Raises FileNotFoundError, and EmbeddedServerError for a link or what is no plain file.
    """
    *folders, last = name.split("/")
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            outer, at = at, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(outer)
        # Cut off only once it is known to be ours.
        kept = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(last, kept, 0o600, dir_fd=at)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _no_file(directory, name) from None
        raise
    finally:
        os.close(at)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _no_file(directory, name)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def read_inside(directory: Path, name: str) -> str:
    """Read a file of `directory`. Raises as open_inside."""
    with os.fdopen(open_inside(directory, name, os.O_RDONLY), errors="replace") as file:
        return file.read()


def _no_file(directory: Path, name: str) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"{directory / name} is a link, or no plain file, and fencepost made none there: it is not opened."
        " Look who has put it there, and remove it"
    )
