"""A lock that is lost while the command runs: the command, and all that it has started, is ended in time."""

import os
import signal
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from tests.cli.running import StartLock, locks, release, variables_in, waiters, written
from tests.support.servers import all_gone

from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import alive, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

ENV = "env > env.new && mv env.new env"
FOR_EVER = "while :; do sleep 0.02; done"
OBEYS = f"sh -c 'trap \"echo TERM >> signals; exit\" TERM; echo $$ >> pids; {FOR_EVER}'"
IGNORES = f"sh -c 'trap \"echo TERM >> signals\" TERM; echo $$ >> pids; {FOR_EVER}'"
LIVES = "trap '' TERM; while :; do date +%s%N >> life; sleep 0.01; done"


async def pids(directory: Path, count: int) -> list[int]:
    return [int(pid) for pid in await written(directory / "pids", lines=count)]


async def test_a_lost_lease_ends_the_whole_process_group(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "12", "sh", "-c", f"{OBEYS} & {OBEYS} & echo $$ >> pids; {ENV}; wait")
    group = await pids(tmp_path, 3)
    await release(http, await variables_in(tmp_path / "env"))
    assert await running.ended() == 79
    assert not any(alive(pid) for pid in group), "ended before we are"
    assert await written(tmp_path / "signals", lines=2) == ["TERM", "TERM"]
    assert running.lines[0].startswith("fencepost lock: lost a, the command was ended: ")
    assert len(running.lines) == 1


async def test_a_grandchild_that_ignores_term_is_killed_though_the_command_has_gone(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "12", "sh", "-c", f"{IGNORES} & echo $$ >> pids; {ENV}; {FOR_EVER}")
    group = await pids(tmp_path, 2)
    await release(http, await variables_in(tmp_path / "env"))
    assert await running.ended() == 79
    assert not any(alive(pid) for pid in group)
    assert await written(tmp_path / "signals") == ["TERM"], "it was asked first"


async def test_the_exit_code_can_be_chosen_and_the_successor_is_named(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "12", "--lost-exit-code", "42", "sh", "-c", f"{ENV}; {FOR_EVER}")
    seen = await variables_in(tmp_path / "env")
    successor = lock("a", "--owner", "successor-1", "sh", "-c", FOR_EVER)
    await waiters(http, 1)
    await release(http, seen)
    assert await running.ended() == 42
    assert "successor-1" in running.printed
    assert successor.process.poll() is None


@pytest.mark.realtime
async def test_the_command_is_dead_before_another_gets_the_lock(
    lock: StartLock, http: httpx.AsyncClient, gateway_url: str, tmp_path: Path
) -> None:
    """The holder's network falls silent; its command ignores TERM, and writes down when it was last alive."""
    with Link.to(gateway_url) as link, ExitStack() as faults:
        old = lock("a", "--ttl", "2", "sh", "-c", LIVES, url=link.url)
        await written(tmp_path / "life", lines=3)
        successor = lock("a", "sh", "-c", f"{ENV}; {FOR_EVER}")
        await waiters(http, 1)
        faults.enter_context(partitioned(link))
        lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
        granted_at = datetime.fromisoformat((await http.get(f"/v1/leases/{lease}")).json()["granted_at"]).timestamp()
        last_life = int((tmp_path / "life").read_text().split()[-1]) / 1e9
        assert last_life < granted_at
        assert last_life > granted_at - 2, "it was not ended too early, either: the grace is used"
        assert await old.ended() == 79
        assert "could not be renewed in time" in old.printed
        assert len(old.lines) == 1
        assert successor.process.poll() is None


@pytest.mark.realtime
async def test_a_release_that_fails_is_a_warning_and_the_exit_code_stays(
    lock: StartLock, gateway_url: str, tmp_path: Path
) -> None:
    with Link.to(gateway_url) as link, ExitStack() as faults:
        script = "echo > runs; until [ -e go ]; do sleep 0.05; done; exit 3"
        running = lock("a", "--ttl", "8", "sh", "-c", script, url=link.url)
        await written(tmp_path / "runs")
        faults.enter_context(partitioned(link))
        (tmp_path / "go").touch()
        assert await running.ended() == 3
        assert "of a could not be released" in running.printed
        assert len(running.lines) == 1


async def test_a_command_dies_when_fencepost_lock_is_killed(lock: StartLock, tmp_path: Path) -> None:
    running = lock("a", "sh", "-c", f"trap 'echo TERM >> signals; exit' TERM; echo $$ >> pids; {FOR_EVER}")
    group = await pids(tmp_path, 1)
    running.process.kill()
    await running.ended()
    await all_gone(group)
    assert await written(tmp_path / "signals") == ["TERM"]


async def expired(http: httpx.AsyncClient, lease: str) -> None:
    async def over() -> bool:
        return (await http.get(f"/v1/leases/{lease}")).status_code == 410

    await eventually(over, what=f"the end of lease {lease}")


@pytest.mark.realtime
async def test_paused_beyond_its_ttl_it_kills_the_command_at_once(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Only `fencepost lock` is stopped. There is no time left for a grace: another client may have the lock."""
    script = f"trap 'echo TERM >> signals' TERM; echo $$ >> pids; {ENV}; {FOR_EVER}"
    running = lock("a", "--ttl", "1.5", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    running.signal(signal.SIGSTOP)
    await expired(http, lease)
    assert alive(group[0]), "no process could end it meanwhile: the fence is for this"
    running.signal(signal.SIGCONT)
    assert await running.ended() == 79
    await all_gone(group)
    assert not (tmp_path / "signals").exists()


@pytest.mark.realtime
async def test_paused_together_with_its_command_it_ends_the_command_before_it_goes_on(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("a", "--ttl", "1.5", "sh", "-c", f"echo $$ >> pids; {ENV}; while :; do echo >> life; done")
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    await written(tmp_path / "life")
    running.signal(signal.SIGSTOP)
    os.killpg(group[0], signal.SIGSTOP)
    await expired(http, lease)
    before = (tmp_path / "life").read_text()
    running.signal(signal.SIGCONT)  # which is passed on, if the lease is still held
    assert await running.ended() == 79
    await all_gone(group)
    assert (tmp_path / "life").read_text() == before, "it did nothing any more"


async def test_paused_within_its_ttl_both_go_on(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    script = f"echo $$ >> pids; {ENV}; until [ -e go ]; do echo >> life; sleep 0.02; done"
    running = lock("a", "--ttl", "20", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    await variables_in(tmp_path / "env")
    await written(tmp_path / "life")
    running.signal(signal.SIGSTOP)
    os.killpg(group[0], signal.SIGSTOP)
    before = len(await written(tmp_path / "life"))
    running.signal(signal.SIGCONT)
    await written(tmp_path / "life", lines=before + 5)
    (tmp_path / "go").touch()
    assert await running.ended() == 0
    assert await locks(http) == []


@pytest.mark.realtime
async def test_a_command_that_ended_while_the_lease_was_not_renewed_counts_as_lost(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """It is not known whether it ended before the lease did."""
    script = f"echo $$ >> pids; {ENV}; until [ -e go ]; do sleep 0.02; done"
    running = lock("a", "--ttl", "1.5", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    lease = (await variables_in(tmp_path / "env"))["FENCEPOST_LEASE"]
    running.signal(signal.SIGSTOP)
    await expired(http, lease)
    (tmp_path / "go").touch()
    await all_gone(group)
    running.signal(signal.SIGCONT)
    assert await running.ended() == 79


async def test_a_stopped_command_is_asked_to_end_too(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path) -> None:
    script = f"trap 'echo TERM >> signals; exit' TERM; echo $$ >> pids; {ENV}; {FOR_EVER}"
    running = lock("a", "--ttl", "12", "sh", "-c", script)
    group = await pids(tmp_path, 1)
    seen = await variables_in(tmp_path / "env")
    os.killpg(group[0], signal.SIGSTOP)
    await release(http, seen)
    assert await running.ended() == 79
    assert await written(tmp_path / "signals") == ["TERM"]
