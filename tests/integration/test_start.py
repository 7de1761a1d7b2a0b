"""A start in which PostgreSQL cannot be reached, or a connection breaks: the gateway tries again for as long as
`--start-timeout` says (startup.py).
"""

import asyncio
import dataclasses
import logging
from functools import partial
from pathlib import Path

import pytest
from tests.support.gateways import Gateway, in_process, launch, workers
from tests.support.manual_clock import UNHURRIED, ManualClock
from tests.support.postgres import cutting_proxy

from fencepost.server.startup import StartupError, UnreachableError, within
from fencepost.server.times import ConnectionTimes, Times
from fencepost.testing.servers.processes import wait_until

SOON = dataclasses.replace(UNHURRIED, connections=ConnectionTimes(start_pause=0.01))
HANDSHAKE, SETTLING = 300, 700
"""Bytes of a connection, both ways, after which it breaks: while it opens, and once its session is asked for."""


@pytest.mark.parametrize("left", [HANDSHAKE, SETTLING])
async def test_whichever_connection_of_the_start_breaks_the_gateway_starts(database: str, left: int) -> None:
    for victim in range(5):  # two of the look at the database, and the first of each of three pools
        breaks = iter([None] * victim + [left])
        proxied = cutting_proxy(database, partial(next, breaks, None))
        async with proxied as (proxy, url), in_process(url, SOON) as client:
            assert proxy.cuts == 1, victim
            assert (await client.get("/readyz")).status_code == 200, victim


async def test_without_a_start_timeout_it_tries_once(database: str) -> None:
    async with cutting_proxy(database, lambda: HANDSHAKE) as (proxy, url):
        with pytest.raises(StartupError, match="cannot connect to PostgreSQL"):
            async with in_process(url, SOON, start_timeout=0):
                pass
    assert proxy.cuts == 1


async def test_it_tries_until_the_time_is_over_and_logs_each_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, reasons = ManualClock(), iter(["one", "one", "two"] + ["three"] * 100)

    async def start() -> None:
        raise UnreachableError(next(reasons))

    with caplog.at_level(logging.WARNING, "fencepost"):
        trying = asyncio.create_task(within(3, start, Times(clock=clock)))
        await clock.advance(2.9)
        assert not trying.done()
        await clock.advance(0.2)
        with pytest.raises(UnreachableError, match="three"):
            await trying
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["one", "two", "three"]


def tries_again(errors: Path) -> bool:
    return "trying again for" in errors.read_text()


@workers
@pytest.mark.parametrize("before", [True, False], ids=["before a worker", "in a worker"])
async def test_serve_waits_for_postgresql_and_can_be_stopped_meanwhile(
    database: str, short_dir: Path, workers: str, *, before: bool
) -> None:
    """The parent looks over two connections first; then it is the workers that wait."""
    whole = iter([None, None])
    async with cutting_proxy(database, lambda: next(whole, HANDSHAKE)) as (proxy, url):
        for stop in (True, False):
            whole = iter([] if before else [None, None])
            errors = short_dir / f"stderr-{stop}"
            with launch("--port", "0", "--workers", workers, errors=errors, FENCEPOST_DATABASE_URL=url) as process:
                gateway = Gateway(process, "", "", errors)
                try:
                    await asyncio.to_thread(wait_until, partial(tries_again, errors))
                    if not stop:
                        proxy.cutting = False
                        assert process.stdout is not None
                        assert "serves http://" in await asyncio.to_thread(process.stdout.readline)
                    process.terminate()
                    assert await gateway.ended() == 0, errors.read_text()
                finally:
                    process.kill()
            assert "Traceback" not in errors.read_text()
