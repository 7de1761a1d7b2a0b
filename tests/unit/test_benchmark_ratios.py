"""What a run reports of the ratios that were wanted."""

import pytest
from benchmarks import cells
from benchmarks.cells import CELLS
from benchmarks.load import Result
from benchmarks.peers import missing
from benchmarks.ratios import OTHERS, WANTED, Ratio, compare


def result(rate: float, p50_ms: float = 1.0, p99_ms: float = 1.0) -> Result:
    return {
        "rate": rate,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "statuses": {},
        "accepted": 0,
        "rows": 0,
        "token_sum": 0,
        "faults": {},
        "generator_cpu": 0.0,
    }


def wanted(name: str) -> Ratio:
    return next(ratio for ratio in WANTED if ratio.name == name)


def test_rates_are_compared_round_by_round() -> None:
    measured = {cells.PATCH.name: [result(30), result(60)], cells.BARE.name: [result(60), result(100)]}
    assert compare(wanted("patch / bare UPDATE"), measured) == [0.5, 0.6]


def test_what_was_not_measured_has_no_ratio() -> None:
    assert compare(wanted("patch / bare UPDATE"), {cells.PATCH.name: [result(30)]}) == []


def test_a_round_without_a_rate_is_no_division_by_zero() -> None:
    measured = {cells.PATCH.name: [result(30), result(60)], cells.BARE.name: [result(0), result(100)]}
    assert compare(wanted("patch / bare UPDATE"), measured) == [0.6]


@pytest.mark.parametrize(("median", "reached"), [(0.59, False), (0.6, True), (0.9, True)])
def test_a_rate_is_to_be_at_least_what_was_wanted(median: float, reached: bool) -> None:
    assert wanted("patch / bare UPDATE").reached(median) is reached


def test_the_slowest_percent_is_to_be_at_most_what_was_wanted() -> None:
    ratio = wanted("p99 / median, 64 conn.")
    assert compare(ratio, {cells.PATCH.name: [result(1, p50_ms=2, p99_ms=7)]}) == [3.5]
    assert ratio.reached(3.5) is False
    assert ratio.reached(3.0) is True


def test_every_ratio_is_of_cells_that_a_run_measures() -> None:
    measured = {cell.name for cell in CELLS}
    assert {side.name for ratio in (*WANTED, *OTHERS) for side in (ratio.of, ratio.to)} <= measured


def test_names_distinguish_cells_and_ratios() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert len({ratio.name for ratio in (*WANTED, *OTHERS)}) == len((*WANTED, *OTHERS))


def test_a_peer_that_is_not_installed_shows_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: None)
    lacks = missing("etcd-benchmark")
    assert lacks is not None
    assert lacks.startswith("no etcd, etcd-benchmark: ")
    assert "etcd-server" in lacks
    assert missing("fencepost") is None
