"""What a machine makes once is made by the first who asks; others wait, and find nothing that is unfinished."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.testing.servers.processes import PATIENCE, wait_until
from fencepost.testing.servers.server import ServerError, made_once


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is not there yet."""
    monkeypatch.setenv("FENCEPOST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/thing"


def waits_for(lock: Path) -> bool:
    """Whether a thread or process waits for the lock on this file: the kernel lists it below the holder's."""
    return any(
        f":{lock.stat().st_ino} " in line for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    )


def test_it_is_made_by_one_and_others_wait(place: Path) -> None:
    begun, made = threading.Event(), []

    def make(new: Path) -> None:
        made.append(new)
        begun.set()
        wait_until(lambda: len(made) > 1 or waits_for(place.with_name("thing.lock")), what="another who asks")
        assert not place.exists()
        new.write_text("whole")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made_once, "thing", make)
        assert begun.wait(PATIENCE)
        second = pool.submit(made_once, "thing", make)
        assert (first.result(), second.result()) == (place, place)
    assert len(made) == 1
    assert made_once("thing", make).read_text() == "whole"
    assert sorted(each.name for each in place.parent.iterdir()) == ["thing", "thing.lock"]


def test_what_could_not_be_made_leaves_nothing(place: Path) -> None:
    def fail(new: Path) -> None:
        new.mkdir()
        (new / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once("thing", fail)
    assert [each.name for each in place.parent.iterdir()] == ["thing.lock"]
    place.with_name("thing.unfinished").mkdir()  # as one that was killed leaves it
    assert made_once("thing", Path.mkdir).is_dir()
    assert sorted(each.name for each in place.parent.iterdir()) == ["thing", "thing.lock"]


def test_a_cache_that_cannot_be_written_is_named(place: Path) -> None:
    place.parent.write_text("a file")
    with pytest.raises(ServerError, match=r"nothing can be kept in .*/cache: .* FENCEPOST_CACHE names another"):
        made_once("thing", Path.mkdir)
