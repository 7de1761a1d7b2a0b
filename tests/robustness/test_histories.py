"""Two histories of one database (R19); layers; the report of a large history."""

import asyncio
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from benchmarks.layers.__main__ import measure_all, services
from benchmarks.layers.layers import COMBINATIONS
from benchmarks.layers.report import broken
from tests.robustness.test_failover import (
    REFUSED,
    _holder,
    _minted,
    acquire,
    by_link,
    code,
    first_token,
    holder,
    of_standby,
    patch,
    put,
    raised,
    read,
    shop,
)
from tests.support.gateways import in_process
from tests.support.histories import large
from tests.support.violations import assert_none, promised

from fencepost.testing.servers.lock_services import MissingServerError
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually

# Two histories of one database that know nothing of one another, and each raises a generation (R19).
# Two standbys of one primary are promoted, the second after the first has been written to. Two point-in-time restores
# of one backup are the same: both end in two servers with one system identifier, on timeline 2, that had the same
# history.


@pytest.mark.long("failovers")
async def test_a_gateway_that_met_one_history_refuses_the_other_until_it_is_ended(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        first = await holder(http, "first", tokens=9)
        assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
        third = await pair.another()
        await pair.caught_up()
        await pair.caught_up(third)
        pair.kill_primary()
        await pair.promote()
        pair.lead_to(pair.standby.url)
        assert (await raised(of_standby(pair))).exit_code == 0
        paused = await eventually(lambda: _holder(http, "B"), what="a lease of the second server")
        await paused.mint(2)
        assert (await patch(http, "k", paused.tokens[0], "second")).status_code == 200

        pair.standby.stop()  # with what B wrote
        await pair.promote(third)
        pair.lead_to(third.url)
        assert await read(http, "k") == "first", "the third server never followed the second"
        assert code(await patch(http, "k", paused.tokens[1], "ZOMBIE")) == REFUSED
        other = in_database(third.url, "shop")
        assert (await raised(other)).exit_code == 0
        refusal = await patch(http, "k", paused.tokens[1], "ZOMBIE")
        assert code(refusal) == REFUSED, "raised by an operator who knew nothing of B"
        body = refusal.json()
        assert "its history does not know the generation" in body["detail"]
        assert (await first_token(other)) != paused.tokens[0] or body["met"]["identity"] != body["known"]["identity"]
        assert int(body["met"]["generation"]) == paused.tokens[0] >> 48
        assert code(await acquire(http, "C")) == REFUSED
        ready = await http.get("/readyz")
        assert (ready.status_code, "its history does not know" in ready.json()["origin"]) == (503, True)

        ended = await raised(other, "--above", str(paused.tokens[0]))
        assert ended.exit_code == 0, ended.output
        assert code(await patch(http, "k", paused.tokens[1], "ZOMBIE")) == (409, "FP001")
        successor = await holder(http, "C", tokens=3)
        promised(min(successor.tokens) > max(paused.tokens), f"tokens fall from {paused.tokens} to {successor.tokens}")
        assert (await patch(http, "k", successor.tokens[0], "third")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.long("failovers")
async def test_tokens_of_another_history_are_refused_by_gateways_that_never_met_it(bin_dir: Path) -> None:
    """By the gap that each raise leaves; it is by chance, so both are raised again if they took one number."""
    async with shop(bin_dir) as pair:
        third = await pair.another()
        async with in_process(by_link(pair)) as http:
            first = await holder(http, "first")
            assert (await put(http, "k", first.tokens[0], "first")).status_code == 201
            await pair.caught_up()
            await pair.caught_up(third)
        pair.kill_primary()
        await pair.promote()
        await pair.promote(third)
        urls = of_standby(pair), in_database(third.url, "shop")
        for _ in range(3):
            for url in urls:
                assert (await raised(url)).exit_code == 0
            if await first_token(urls[0]) != await first_token(urls[1]):
                break
        async with in_process(urls[0]) as one, in_process(urls[1]) as other:
            b, c = await asyncio.gather(holder(one, "B", tokens=3), holder(other, "C", tokens=3))
            assert set(b.tokens).isdisjoint(c.tokens)
            for token in b.tokens:
                assert code(await patch(other, "k", token, "ZOMBIE")) in ((409, "FP001"), (409, "FP018"))
            for token in c.tokens:
                assert code(await patch(one, "k", token, "ZOMBIE")) in ((409, "FP001"), (409, "FP018"))


@pytest.mark.long("failovers")
async def test_a_history_that_was_refused_does_not_keep_the_met_one_out(bin_dir: Path) -> None:
    async with shop(bin_dir) as pair, in_process(by_link(pair)) as http:
        third = await pair.another()
        await pair.caught_up()
        await pair.caught_up(third)
        pair.kill_primary()
        await pair.promote()
        await pair.promote(third)
        for url in (of_standby(pair), in_database(third.url, "shop")):
            assert (await raised(url)).exit_code == 0
        pair.lead_to(pair.standby.url)
        met = await eventually(lambda: _holder(http, "B"), what="a lease of the second server")
        pair.lead_to(third.url)

        async def refused() -> bool:
            return "its history does not know" in (await http.get("/readyz")).json()["origin"]

        await eventually(refused, what="the third server met")
        pair.lead_to(pair.standby.url)
        await eventually(lambda: _minted(met), what="a token of the second server")
        assert (await put(http, "new", met.tokens[-1], "second")).status_code == 201


# A lock, a queue and a fence together, and with some of them off: docs/combining.md, run again by another seed.


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


# A report of 100,000 operations: its size and the memory that it takes do not grow with the history.

# VmHWM, in kB, is of the program by itself: ru_maxrss begins with what the process that started it had.


@pytest.mark.long("large histories")
@pytest.mark.parametrize("resources", [1, 25_000])
def test_many_operations_are_a_small_page(tmp_path: Path, resources: int) -> None:
    operations = 100_000
    history = large(tmp_path / "h.jsonl", operations, resources=resources)
    writes = dedent("""
        import sys
        from fencepost.testing.checker import Verdict
        from fencepost.testing.torture.report import write_report
        print(write_report(sys.argv[1], Verdict(True, (), 0, 0, 0, 0, 0), sys.argv[2]))
        print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
    """)
    written = subprocess.run(
        [sys.executable, "-c", writes, history, tmp_path / "report.html"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert written[0] == "Valid: no violation in 100,000 operations"
    megabyte = 1 << 20
    assert int(written[-1]) * 1024 < 80 * megabyte
    assert (tmp_path / "report.html").stat().st_size < 5 * megabyte
    page = (tmp_path / "report.html").read_text("utf-8")
    assert (" of 100,000 operations are drawn" if resources == 1 else "10 of 24,510 resources") in page
