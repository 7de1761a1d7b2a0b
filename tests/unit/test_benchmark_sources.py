"""What a run over the token sources reports, and that docs/sources.md has the same."""

import asyncio
import json
from typing import Any

import pytest
from benchmarks import source_measures, source_report
from benchmarks.processes import BenchmarkError
from benchmarks.source_clients import BUILTIN
from benchmarks.source_measures import Round, Way, handovers, latencies, percentile
from benchmarks.source_services import KINDS

from fencepost.locks.registry import KINDS as REGISTERED
from fencepost.locks.registry import kind_of

MACHINE = {"cores": 2, "cpu": "a CPU", "fdatasync_us": 130.0, "revision": "abc"}


def one(acquire: float, release: float, *, busy: float = 0.0, handover: float = 3.0, crashed: float = 2.0) -> Round:
    return Round(
        gateway=Way(acquire, 2 * acquire, release, 2 * release, handover),
        alone=Way(acquire / 2, acquire, release / 2, release, handover / 2),
        crashed_process_s=crashed,
        crashed_client_s=crashed + 0.5,
        busy_before=busy,
    )


def made(**measured: list[Round]) -> dict[str, Any]:
    about = {"machine": MACHINE, "postgresql": {"server_version": "18.4"}, "rounds": 2}
    about["left_out"] = {"kubernetes": "no kube-apiserver"}
    return source_report.report(about, measured, dict.fromkeys(measured, "1.2"))


def test_ratios_are_of_the_same_round() -> None:
    report = made(builtin=[one(1, 1), one(10, 10)], etcd=[one(2, 4), one(20, 10)])
    assert report["sources"]["etcd"]["by_builtin"] == {"median": 2.25, "lowest": 1.5, "highest": 3.0}
    assert report["sources"][BUILTIN]["by_builtin"]["median"] == 1.0


def test_a_row_has_the_medians_and_what_ended_the_hold() -> None:
    report = made(builtin=[one(1, 1)], etcd=[one(2, 4, handover=7, crashed=2.25)])
    row = next(line for line in source_report.markdown(report).splitlines() if line.startswith("| etcd"))
    figures = row.split(" | ")[1:]
    assert figures == [
        *("2.00 / 4.00", "4.00 / 8.00", "3.00", "1.00", "2.00", "7.00", "2.75"),
        "2.25 (TTL: 2) |",
    ]


def test_heading_and_rows_have_as_many_columns() -> None:
    table = [line for line in source_report.markdown(made(builtin=[one(1, 1)])).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


def test_what_was_left_out_is_named() -> None:
    assert "Not measured: kubernetes (no kube-apiserver)." in source_report.markdown(made(builtin=[one(1, 1)]))


@pytest.mark.parametrize(("busy", "verdict"), [(0.1, "quiet"), (0.11, "not quiet")])
def test_a_run_beside_others_reports_it(busy: float, verdict: str) -> None:
    output = source_report.noise(made(builtin=[one(1, 1), one(1, 1, busy=busy)]))
    assert output.partition(": ")[2].startswith(verdict)


def test_percentiles_are_of_what_was_measured() -> None:
    assert percentile([0.003, 0.001, 0.002], 0.5) == 2.0
    assert percentile([0.001] * 99 + [0.5], 0.99) == 500.0
    with pytest.raises(BenchmarkError):
        percentile([], 0.5)


class LockClient:
    """Takes and gives a lock of this process; an exclusive one, or one that everybody gets."""

    def __init__(self, lock: asyncio.Semaphore, log: list[str]) -> None:
        self._lock, self._log, self._has_it = lock, log, False

    async def acquire(self, name: str) -> None:
        await self._lock.acquire()
        self._has_it = True
        self._log.append(f"acquire {name}")

    async def release(self) -> None:
        assert self._has_it, "only its holder releases a lock"
        self._lock.release()
        self._has_it = False
        self._log.append("release")

    async def close(self) -> None:
        self._log.append("close")


async def test_a_lock_is_handed_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_measures, "QUEUED", 0.01)
    lock, log = asyncio.Semaphore(1), list[str]()

    async def open_client(_waits: bool, _ttl_ms: int) -> LockClient:
        return LockClient(lock, log)

    assert len(await handovers(open_client, 3)) == 3
    assert [line.partition(" ")[0] for line in log] == [*["acquire", "release"] * 4, "close", "close"]


async def test_a_lock_that_two_have_at_once_spoils_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_measures, "QUEUED", 0.01)
    lock, log = asyncio.Semaphore(2), list[str]()

    async def open_client(_waits: bool, _ttl_ms: int) -> LockClient:
        return LockClient(lock, log)

    with pytest.raises(BenchmarkError, match="was granted while it was held"):
        await handovers(open_client, 1)
    assert log.count("close") == 2


async def test_each_pair_counts_once_and_the_first_ones_do_not() -> None:
    lock, log = asyncio.Semaphore(1), list[str]()

    async def open_client(_waits: bool, _ttl_ms: int) -> LockClient:
        return LockClient(lock, log)

    acquired, released = await latencies(open_client, 0.001)
    assert len(acquired) == len(released) == log.count("release") - source_measures.WARMUP


def test_a_page_keeps_what_is_around_the_table() -> None:
    page = f"before\n{source_report.BEGIN}old\n{source_report.END}after\n"
    new = source_report.inserted(page, "new\n")
    assert new == page.replace("old", "new")
    with pytest.raises(ValueError, match="no <!--"):
        source_report.inserted("no marks\n", "new\n")


def test_every_registered_source_is_measured() -> None:
    measured = {kind.name.replace("_", "-") for kind in KINDS}
    registered = {kind_of(f"{scheme}://x") for scheme in REGISTERED}
    assert measured == registered | {BUILTIN}, "benchmarks/source_services.py: KINDS has each source"


def test_the_page_shows_the_figures_that_are_kept() -> None:
    kept = json.loads(source_report.KEPT.read_text())
    page = source_report.PAGE.read_text("utf-8")
    assert source_report.inserted(page, source_report.markdown(kept)) == page, "python -m benchmarks.source_report"
