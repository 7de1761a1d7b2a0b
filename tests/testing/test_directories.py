"""What a killed run leaves in /tmp and /dev/shm, the next one removes; what belongs to a run that lives stays."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.testing.servers import processes
from fencepost.testing.servers.processes import new_directory, owned_directory, remove_directory, server_directory

OWNED = "from fencepost.testing.servers.processes import owned_directory; from pathlib import Path"


@contextmanager
def another_run(program: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that makes a directory, and wait until it has. Afterwards it was killed."""
    command = [sys.executable, "-c", f"{program}; print(flush=True); input()"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(directory)}
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_directory_stays_for_as_long_as_its_owner_lives(tmp_path: Path) -> None:
    with another_run(f"{OWNED}; Path(owned_directory('a-', Path({str(tmp_path)!r})), 'x').touch()", tmp_path):
        (theirs,) = tmp_path.iterdir()
        mine = owned_directory("a-", tmp_path)
        assert set(tmp_path.iterdir()) == {theirs, mine}
    other = owned_directory("a-", tmp_path)
    assert set(tmp_path.iterdir()) == {mine, other}
    for each in (mine, other):
        remove_directory(each)
    assert list(tmp_path.iterdir()) == []


def test_room_is_made_before_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    left = memory / "fencepost-servers-left"
    left.mkdir()
    monkeypatch.setattr(processes, "_MEMORY", memory)
    monkeypatch.setattr(processes, "_MEMORY_NEEDED", float("inf"))
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with server_directory() as directory:
        assert directory.parent == disk
        assert list(memory.iterdir()) == []
    monkeypatch.setattr(processes, "_MEMORY_NEEDED", 0)
    directory = new_directory()
    assert directory.parent == memory
    remove_directory(directory)
