"""Which tests run on which PostgreSQL."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.selection import runs_on

FIRST, SECOND = BOTH = ("embedded-18", "debian-15")
ANY, VERSIONS = (), (pytest.mark.versions,)


def collected(folder: str, *marks: pytest.MarkDecorator, file: str = "test_it.py", **parameters: object) -> pytest.Item:
    """Stand in for a test of this file, with these marks and parameters."""
    of_name = {mark.name: mark.mark for mark in marks}
    callspec = SimpleNamespace(params=parameters)
    item: Any = SimpleNamespace(path=Path("tests") / folder / file, callspec=callspec, get_closest_marker=of_name.get)
    return cast("pytest.Item", item)


def on(folder: str, marks: tuple[pytest.MarkDecorator, ...] = ANY, **how: bool) -> list[str]:
    """List the servers on which the two of a test run that were collected."""
    how = {"by_name": False, "spread": False} | how
    return [each for each in BOTH if runs_on(collected(folder, *marks, postgres=each), BOTH, **how)]


def test_a_test_runs_on_the_first_server_and_what_versions_change_on_both() -> None:
    assert on("integration") == [FIRST]
    assert on("integration", VERSIONS) == on("integration", VERSIONS, spread=True) == [*BOTH]
    assert runs_on(collected("unit"), BOTH, by_name=False, spread=True)


def test_all_tests_are_spread_over_the_servers_a_file_on_one() -> None:
    files = [f"test_{number}.py" for number in range(100)]
    ran = {
        server: [
            file
            for file in files
            if runs_on(collected("http", file=file, bin_dir=server), BOTH, by_name=False, spread=True)
        ]
        for server in BOTH
    }
    assert sorted(ran[FIRST] + ran[SECOND]) == sorted(files)
    assert min(len(ran[FIRST]), len(ran[SECOND])) > 30


def test_one_that_is_named_runs_on_both_but_in_folders_of_one_server() -> None:
    assert on("http", by_name=True) == [*BOTH]
    assert on("cli", by_name=True) == on("cli", VERSIONS, spread=True) == [FIRST]


def test_where_one_server_is_installed_it_runs_everything() -> None:
    for how in (False, True):
        assert runs_on(collected("integration", postgres=SECOND), [SECOND], by_name=False, spread=how)
        assert runs_on(collected("cli", postgres=SECOND), [SECOND], by_name=False, spread=how)
