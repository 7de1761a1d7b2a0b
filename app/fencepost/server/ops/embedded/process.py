"""Child processes of ours: whom they run as, and that they never outlive us."""

import functools
import os
import pwd
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fencepost.server.ops.embedded.parent_death import die_with_parent


class EmbeddedServerError(Exception):
    """The embedded PostgreSQL cannot run. The message is one line for the user: what is wrong, what to do."""


def require_main_thread() -> None:
    """Raise EmbeddedServerError except in the main thread: a child dies with the thread that forked it."""
    if threading.current_thread() is not threading.main_thread():
        raise EmbeddedServerError("the embedded PostgreSQL must be started from the main thread")


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system's user that PostgreSQL runs as. `drop`: we are root, which PostgreSQL refuses."""

    uid: int
    gid: int
    drop: bool

    @classmethod
    def choose(cls, directory: Path) -> Self:
        """Pick ourselves; or, as root, the owner of an existing directory, else `postgres`, else `nobody`.

        The owner goes first so that a directory that an ordinary user made stays his.
        """
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), drop=False)
        if directory.is_dir() and (owner := directory.stat()).st_uid != 0:
            return cls(owner.st_uid, owner.st_gid, drop=True)
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid, drop=True)
        raise EmbeddedServerError(
            "PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody to run as"
        )

    @property
    def name(self) -> str:
        """The user's name, or its number where it has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def popen_arguments(self, with_signal: signal.Signals = signal.SIGINT) -> dict[str, Any]:
        """Keyword arguments of subprocess.Popen: this user, a session of its own, and death with us.

        A session of its own keeps a terminal's Ctrl-C away from the child; Popen runs preexec_fn after the
        change of user, as die_with_parent demands.
        """
        before_exec = functools.partial(die_with_parent, os.getpid(), with_signal)
        arguments: dict[str, Any] = {"preexec_fn": before_exec, "start_new_session": True, "cwd": "/"}
        if self.drop:
            arguments |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return arguments

    def may_enter(self, directory: Path) -> bool:
        """Return whether the mode bits let this user walk through a directory."""
        status = directory.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)

    def blocking_directory(self, path: Path) -> Path | None:
        """Name the first directory above `path` that this user cannot walk through, if there is one."""
        for directory in reversed(path.resolve().parents):
            if directory.is_dir() and not self.may_enter(directory):
                return directory
        return None
