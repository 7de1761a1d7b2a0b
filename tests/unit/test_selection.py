"""What `make test` leaves to `make test-all`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.selection import kind_left, runs_nowhere

FIRST, SECOND = "embedded-18", "debian-15"
ON_SECOND = f"tests on {SECOND} that {FIRST} ran"


def collected(folder: str, *marks: pytest.MarkDecorator, **parameters: object) -> pytest.Item:
    """Stand in for a test of this folder, with these marks and parameters."""
    of_name = {mark.name: mark.mark for mark in marks}
    callspec = SimpleNamespace(params=parameters)
    path = Path("tests") / folder / "test_it.py"
    item: Any = SimpleNamespace(path=path, callspec=callspec, get_closest_marker=of_name.get)
    return cast("pytest.Item", item)


@pytest.mark.parametrize(
    ("item", "left"),
    [
        (collected("unit"), None),
        (collected("integration", postgres=FIRST), None),
        (collected("integration", postgres=SECOND), ON_SECOND),
        (collected("integration", pytest.mark.versions, postgres=SECOND), None),
        (collected("robustness", bin_dir=SECOND), ON_SECOND),
        (collected("robustness", pytest.mark.long("storms")), "storms"),
        (collected("robustness", pytest.mark.long("storms"), pytest.mark.versions, postgres=SECOND), "storms"),
        (collected("cli", postgres=SECOND), None),
    ],
)
def test_long_tests_and_those_on_the_second_server_are_left(item: pytest.Item, left: str | None) -> None:
    assert kind_left(item, FIRST, long_too=False) == left


def test_a_long_test_of_a_named_file_runs() -> None:
    assert kind_left(collected("robustness", pytest.mark.long("storms")), FIRST, long_too=True) is None


@pytest.mark.parametrize(
    ("folder", "server", "nowhere"), [("cli", SECOND, True), ("cli", FIRST, False), ("http", SECOND, False)]
)
def test_some_folders_never_run_on_the_second_server(folder: str, server: str, nowhere: bool) -> None:
    assert runs_nowhere(collected(folder, postgres=server), FIRST) == nowhere


def test_without_the_embedded_server_the_other_one_runs_everything() -> None:
    assert kind_left(collected("integration", postgres=SECOND), SECOND, long_too=False) is None
    assert not runs_nowhere(collected("cli", postgres=SECOND), SECOND)
