"""A lock, a queue and a fence together, and with some of them off: docs/combining.md, run again by another seed."""

import asyncio

import pytest
from benchmarks.layers.__main__ import measure_all, services
from benchmarks.layers.layers import COMBINATIONS
from benchmarks.layers.report import broken
from tests.support.violations import assert_none

from fencepost.testing.servers.lock_services import MissingServerError


@pytest.mark.long("storms")
def test_each_layer_that_is_off_lets_through_what_the_page_says(seed: int) -> None:
    try:
        with services() as running:
            rows = asyncio.run(measure_all(running, COMBINATIONS, seed))
    except MissingServerError as missing:
        pytest.skip(str(missing))
    again = f"FENCEPOST_STORM_SEED={seed}"
    fenced = [row for row in rows if row["queue"] and row["fence"]]
    wrong = ("duplicates", "without_effect", "stale", "wrong_at_the_end")
    assert_none([f"{each}: {row}" for row in fenced for each in wrong if row[each]], again)
    twice = [row for row in rows if row["fence"] and row["duplicates"]]
    assert_none([f"an effect twice under a fence: {row}" for row in twice], again)
    assert broken(rows) == [], f"{again} {rows}"
