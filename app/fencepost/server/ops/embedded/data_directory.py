"""The embedded PostgreSQL's data directory: what lies where, whose it is, and that one process uses it.

    lock            flock'ed for as long as a supervisor runs; holds its pid
    password        of the superuser `postgres`
    url             where the running server is; gone when it was stopped cleanly
    pgdata/         PostgreSQL's own directory (pgdata.new/ while initdb works)
    postgresql.log  PostgreSQL's log

The lock is a flock because the kernel drops it with its holder, even a killed one. PostgreSQL's own
postmaster.pid is not enough: it is checked with kill -0, which takes a zombie or a stranger who got the same
pid for a live server.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path

from fencepost.server.ops.embedded.files import open_inside, read_inside
from fencepost.server.ops.embedded.process import Account, EmbeddedServerError

_OUR_FILES = {"lock", "password", "url", "url.new", "pgdata", "pgdata.new", "postgresql.log", "lost+found"}
_OF_THE_DOCS = {"jwt-secret", "jwt"}
"""What docs/authentication.md has people put beside them."""
_CHOOSE_ANOTHER = "choose another with --data-dir or FENCEPOST_DATA_DIR"
_LOCK_PATIENCE = 0.3  # seconds; `running_url` of another process holds the lock for a moment


class DataDirectory:
    """One data directory. Everything in it belongs to `account`, and no other user can look inside."""

    def __init__(self, path: Path, account: Account) -> None:
        self.path = path
        self.account = account
        self.pgdata = path / "pgdata"
        self.unfinished = path / "pgdata.new"
        self.log = path / "postgresql.log"
        self.password_file = path / "password"
        self._url_file = path / "url"
        self._lock: int | None = None

    def open(self) -> None:
        """Make the directory if it is absent, lock it, and set owner and mode. Raises EmbeddedServerError."""
        try:
            self._check_reachable()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_reachable()  # parents made under a strict umask
            self._check_contents()
            self._acquire_lock()
            self._take_ownership()
        except (FileExistsError, NotADirectoryError) as error:
            raise EmbeddedServerError(f"the data directory {self.path} cannot be made: {error}") from error
        except OSError as error:
            raise EmbeddedServerError(
                f"the data directory {self.path} cannot be used: {error.strerror}"
                f" ({error.filename or self.path}); {_CHOOSE_ANOTHER}"
            ) from error

    def close(self) -> None:
        """Let go of the lock. Closing twice is harmless."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check_version(self, major: str) -> None:
        """Raise EmbeddedServerError unless pgdata was made by this major version of PostgreSQL."""
        try:
            found = read_inside(self.path, "pgdata/PG_VERSION").strip()
        except FileNotFoundError:
            raise EmbeddedServerError(f"{self.pgdata} is not a PostgreSQL data directory") from None
        if found != major:
            raise EmbeddedServerError(
                f"{self.pgdata} was made by PostgreSQL {found}, and this is PostgreSQL {major}:"
                " dump it with the old version and load it into a new data directory"
            )

    def password(self) -> str:
        """Read the superuser's password. Raises EmbeddedServerError when its file is lost."""
        try:
            return read_inside(self.path, self.password_file.name).strip()
        except FileNotFoundError:
            raise EmbeddedServerError(
                f"{self.password_file} is missing, and without it no login is possible to {self.pgdata}"
            ) from None

    def new_password(self) -> str:
        """Make a password and keep it. Letters, digits, `-` and `_` only: it stands in a URL as it is."""
        password = secrets.token_urlsafe(24)
        self._write(self.password_file, password)
        return password

    def discard_unfinished(self) -> None:
        """Remove what an interrupted initdb left behind."""
        if self.unfinished.exists():
            shutil.rmtree(self.unfinished)

    def adopt_unfinished(self) -> None:
        """Make the new cluster the cluster, durably: initdb has synced what is inside, not its name."""
        self.unfinished.rename(self.pgdata)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish_url(self, url: str) -> None:
        """Write down where the server is, for `fencepost status` and for `psql "$(cat …/url)"`."""
        unfinished = self.path / "url.new"
        self._write(unfinished, url + "\n")
        unfinished.rename(self._url_file)

    def withdraw_url(self) -> None:
        """Remove what publish_url wrote."""
        self._url_file.unlink(missing_ok=True)

    def open_log(self) -> int:
        """Open PostgreSQL's log for appending; the caller closes the descriptor."""
        return self._open(self.log, os.O_WRONLY | os.O_APPEND)

    def read_log(self, begin: int) -> str:
        """Read PostgreSQL's log from a position on."""
        with os.fdopen(open_inside(self.path, self.log.name, os.O_RDONLY), "rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    def _check_reachable(self) -> None:
        if blocking := self.account.blocking_directory(self.path):
            raise EmbeddedServerError(
                f"PostgreSQL runs as user {self.account.name}, who cannot reach {self.path}:"
                f" {blocking} does not let other users through; {_CHOOSE_ANOTHER}"
            )

    def _check_contents(self) -> None:
        strangers = sorted({entry.name for entry in self.path.iterdir()} - _OUR_FILES - _OF_THE_DOCS)
        if strangers and not self.pgdata.is_dir():
            raise EmbeddedServerError(
                f"{self.path} is not a fencepost data directory: it holds {strangers[0]!r}; {_CHOOSE_ANOTHER}"
            )

    def _acquire_lock(self) -> None:
        lock = self._open(self.path / "lock", os.O_RDWR)
        deadline = time.monotonic() + _LOCK_PATIENCE
        while not _try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise EmbeddedServerError(f"the data directory {self.path} is in use by fencepost (pid {holder})")
            time.sleep(0.02)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def _take_ownership(self) -> None:
        if self.account.drop:
            os.chown(self.path, self.account.uid, self.account.gid)
        self.path.chmod(0o700)

    def _write(self, path: Path, text: str) -> None:
        descriptor = self._open(path, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)

    def _open(self, path: Path, flags: int) -> int:
        """Open or make a private file."""
        descriptor = open_inside(self.path, path.name, flags | os.O_CREAT)
        if self.account.drop:
            os.fchown(descriptor, self.account.uid, self.account.gid)
        os.fchmod(descriptor, 0o600)
        return descriptor


def running_url(path: Path) -> str | None:
    """Return the URL of the embedded server that runs on this data directory now, or None.

    A `url` file alone proves nothing, since a killed supervisor leaves it behind; the lock does. Raises
    PermissionError when the directory belongs to another user.
    """
    try:
        lock = open_inside(path, "lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(lock, fcntl.LOCK_SH):
            return None
    finally:
        os.close(lock)
    with contextlib.suppress(FileNotFoundError):  # it is just starting or stopping
        return read_inside(path, "url").strip()
    return None


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
