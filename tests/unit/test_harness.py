"""Which tests run on which PostgreSQL, what an oracle's Violation is, and the ports that servers of tests get."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.selection import runs_on
from tests.support.violations import Violation, judging, violations_in

from fencepost.testing.servers.processes import range_of

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


def test_a_violation_is_found_in_a_group_and_in_what_an_exception_was_raised_from() -> None:
    violation = Violation("two hold x")
    later = TimeoutError()
    later.__cause__ = ExceptionGroup("tasks", [ValueError(), ExceptionGroup("inner", [violation])])
    assert violations_in(later) == [violation]
    assert violations_in(AssertionError("a mere one")) == violations_in(None) == []


def test_what_a_scenario_asserts_is_a_violation_and_says_what_was_asserted() -> None:
    with pytest.raises(Violation, match="failing_scenario: ") as raised, judging():
        failing_scenario()
    assert "the second holder" in str(raised.value)


def failing_scenario() -> None:
    raise AssertionError("the second holder")


@pytest.mark.parametrize(("error", "within"), [(TimeoutError(), 9.0), (AssertionError(), -1.0)])
def test_a_wait_that_came_to_its_end_and_what_comes_too_late_are_none(error: Exception, within: float) -> None:
    with pytest.raises(type(error)) as raised, judging(within):
        raise error
    assert raised.value is error


def test_no_two_workers_share_a_port_and_no_outgoing_connection_has_one() -> None:
    ranges = [range_of(worker, 32768) for worker in ("", *(f"gw{n}" for n in range(15)))]
    for one, other in itertools.combinations(ranges, 2):
        assert not set(one) & set(other)
    assert max(map(max, ranges)) < 32768
    assert range_of("gw0", 1024) == range(1), "the system chooses"
