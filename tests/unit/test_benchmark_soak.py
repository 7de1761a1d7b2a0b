"""The soak's verdict, on samples that leak and on samples that do not; and which rows the scaling run writes."""

from dataclasses import replace

import pytest
from benchmarks.sized import FIRST_KEY, hot
from benchmarks.soak import leaks, left
from benchmarks.soak_samples import Sample

_TABLE = {"heap": 6_000_000, "indexes": 3_000_000}
_TABLES = ("public.orders", "public.scoped", "public.churn", "fencepost.locks", "fencepost.leases")
STEADY = Sample(0.0, [95_000, 96_000], [68, 68], 50, 22, {}, {name: dict(_TABLE) for name in _TABLES})


def samples(count: int = 40) -> list[Sample]:
    return [replace(STEADY, at=float(number)) for number in range(count)]


def test_a_steady_gateway_leaks_nothing() -> None:
    assert leaks(samples(), 8) == []


def test_memory_that_rises_is_a_leak() -> None:
    rising = [replace(s, rss_kb=[95_000, 96_000 + 1000 * n]) for n, s in enumerate(samples())]
    assert [fault[:18] for fault in leaks(rising, 8)] == ["memory of worker 2"]
    early = [replace(s, rss_kb=[95_000 + 1000 * min(n, 19), 96_000]) for n, s in enumerate(samples())]
    assert leaks(early, 8) == []  # the first half is the warm-up


def test_files_and_connections_that_rise_are_leaks() -> None:
    rising = [replace(s, files=[68 + n // 3, 68], backends=22 + n // 3) for n, s in enumerate(samples())]
    assert [fault.split(" rose")[0] for fault in leaks(rising, 8)] == [
        "open files of worker 1",
        "connections to PostgreSQL",
    ]


def test_a_table_that_swells_is_named() -> None:
    swollen = [
        replace(s, tables={**s.tables, "public.orders": {"heap": 6_000_000 + 10_000 * n**2, "indexes": 3_000_000}})
        for n, s in enumerate(samples())
    ]
    assert [fault.split(" rose")[0] for fault in leaks(swollen, 8)] == ["heap of public.orders, bytes,"]


def test_what_is_left_after_the_load_is_named() -> None:
    ended = replace(STEADY, files=[43, 43], clients=0)
    assert left(samples(), ended) == []
    metrics = {'fencepost_pool_connections{state="used"}': 1.0, 'fencepost_pool_connections{state="idle"}': 9.0}
    assert left(samples(), replace(ended, metrics=metrics)) == ["left after the load: 1 connections of the pool in use"]
    assert left(samples(), replace(ended, metrics={"fencepost_lock_waiters": 2.0})) == [
        "left after the load: 2 waiters"
    ]
    assert left(samples(), replace(ended, files=[43, 53])) == ["left after the load: 8 open files too many"]


@pytest.mark.parametrize("rows", [1_000, 100_000, 10_000_000])
@pytest.mark.parametrize("connections", [32, 64])
def test_hot_rows_are_as_many_in_every_table_and_all_over_it(rows: int, connections: int) -> None:
    walk = hot(rows, connections)
    keys = {walk.key(number, step, connections) for number in range(connections) for step in range(1, 100)}
    assert len(keys) == 960
    assert min(keys) == FIRST_KEY
    assert FIRST_KEY + 0.9 * rows < max(keys) < FIRST_KEY + rows
