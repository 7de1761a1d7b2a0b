"""What the embedded server's account puts into the data directory does not lead us to other files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.server.ops.embedded import disown_stale_pid_file, live_postmaster
from fencepost.server.ops.embedded_files import Account, DataDirectory, EmbeddedServerError

VALUABLE = "1\nroot's own\n"


@pytest.fixture
def valuable(tmp_path: Path) -> Path:
    """A file outside of the data directory."""
    path = tmp_path / "valuable"
    path.write_text(VALUABLE)
    return path


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    (tmp_path / "data" / "pgdata").mkdir(parents=True)
    return DataDirectory(tmp_path / "data", Account(os.geteuid(), os.getegid(), drop=False))


def symbolic(target: Path, link: Path) -> None:
    link.symlink_to(target)


def hard(target: Path, link: Path) -> None:
    link.hardlink_to(target)


def pipe(_target: Path, link: Path) -> None:
    os.mkfifo(link)


links = pytest.mark.parametrize("link", [symbolic, hard, pipe])
Link = Callable[[Path, Path], None]


@links
def test_the_pid_file(directory: DataDirectory, valuable: Path, link: Link) -> None:
    link(valuable, directory.pgdata / "postmaster.pid")
    for use in (live_postmaster, disown_stale_pid_file):
        with pytest.raises(EmbeddedServerError, match=r"postmaster.pid is a link, or no plain file"):
            use(directory.pgdata)
    assert valuable.read_text() == VALUABLE


@links
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("password", DataDirectory.new_password),
        ("password", DataDirectory.password),
        ("url.new", lambda directory: directory.publish_url("postgresql://x")),
        ("postgresql.log", DataDirectory.open_log),
        ("lock", DataDirectory.open),
        ("pgdata/PG_VERSION", lambda directory: directory.check_version("18")),
    ],
)
def test_our_own_files(
    directory: DataDirectory, valuable: Path, link: Link, name: str, use: Callable[[DataDirectory], object]
) -> None:
    link(valuable, directory.path / name)
    with pytest.raises(EmbeddedServerError, match="is a link, or no plain file"):
        use(directory)
    assert valuable.read_text() == VALUABLE


def a_file(directory: DataDirectory) -> None:
    directory.pgdata.rmdir()
    directory.path.rmdir()
    directory.path.write_text("")


def nothing(_directory: DataDirectory) -> None:
    pass


@pytest.mark.parametrize(
    ("made", "use", "message"),
    [
        (a_file, DataDirectory.open, "cannot be made: .*data"),
        (nothing, lambda directory: directory.check_version("18"), "pgdata is not a PostgreSQL data directory"),
        (nothing, DataDirectory.password, "password is missing, and without it no login is possible"),
    ],
)
def test_what_is_not_there(
    directory: DataDirectory,
    made: Callable[[DataDirectory], None],
    use: Callable[[DataDirectory], object],
    message: str,
) -> None:
    made(directory)
    with pytest.raises(EmbeddedServerError, match=message):
        use(directory)


def test_a_stale_pid_file_of_its_own_is_written(directory: DataDirectory) -> None:
    (directory.pgdata / "postmaster.pid").write_text("999999\nrest of it\n")
    disown_stale_pid_file(directory.pgdata)
    assert (directory.pgdata / "postmaster.pid").read_text() == f"{os.getpid()}\nrest of it\n"
