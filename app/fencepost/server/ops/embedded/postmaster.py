"""Reading PostgreSQL's postmaster.pid: who runs on a cluster, and whether it is ready.

Its first line is the postmaster's pid, its eighth the state, `ready` once connections are taken.
"""

import os
from pathlib import Path

from fencepost.server.ops.embedded.files import open_inside, read_inside

_STATUS_LINE = 7


def is_ready(pgdata: Path, pid: int) -> bool:
    """Return whether the postmaster with this pid takes connections. pg_ctl waits on the same line."""
    lines = _read(pgdata)
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def live_postmaster(pgdata: Path) -> int | None:
    """Return the pid of the postmaster that runs on this cluster, or None when nothing does.

    A postmaster's working directory is its cluster. A zombie has none, and a stranger who was given the same
    pid has another one.
    """
    pid = _recorded_pid(pgdata)
    if pid is None or pid == os.getpid():
        return None
    try:
        runs_here = Path("/proc", str(pid), "cwd").samefile(pgdata)
    except OSError:  # it is gone, a zombie, or another user's
        return None
    return pid if runs_here else None


def disown_stale_pid_file(pgdata: Path) -> None:
    """Make PostgreSQL see that a pid file is stale, where its own test, kill -0, would take it for live.

    Our own pid goes in: PostgreSQL knows that its parent is no server on its cluster. The file itself stays,
    with the shared memory key in it, by which PostgreSQL makes sure that no old backend is still at work.
    Call it only while holding the data directory's lock, with live_postmaster() None.
    """
    lines = _read(pgdata)
    if lines:
        lines[0] = str(os.getpid())
        with os.fdopen(open_inside(pgdata.parent, _name(pgdata), os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write("\n".join(lines) + "\n")


def _recorded_pid(pgdata: Path) -> int | None:
    lines = _read(pgdata)
    try:
        return abs(int(lines[0])) if lines else None
    except ValueError:
        return None


def _read(pgdata: Path) -> list[str]:
    try:
        return read_inside(pgdata.parent, _name(pgdata)).splitlines()
    except FileNotFoundError:
        return []


def _name(pgdata: Path) -> str:
    return f"{pgdata.name}/postmaster.pid"
