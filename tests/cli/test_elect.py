"""`fencepost elect`: a command that runs as long as we lead."""

import signal
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.cli.running import Running, StartLock, release, variables_in, waiters, whole_lines, written
from tests.support.gateways import gateway_process

from fencepost.cli.main import main
from fencepost.testing.servers.processes import alive, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

ENV = "env > env.new && mv env.new env"
FOR_EVER = "while :; do sleep 0.02; done"
EACH_TERM = "echo $FENCEPOST_TERM $$ >> terms"
NO_ONE = "http://127.0.0.1:9"


async def test_the_command_runs_with_its_term_and_writes_under_it(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = lock("jobs/nightly", "--owner", "me", "--", "sh", "-c", f"{ENV}; read x; exit 7", stdin=-1, verb="elect")
    seen = await variables_in(tmp_path / "env")
    leader = (await http.get("/v1/elections?name=jobs/nightly")).json()["leader"]
    assert (seen["FENCEPOST_TERM"], seen["FENCEPOST_ELECTION"]) == (leader["term"], "jobs/nightly")
    assert seen["FENCE_LOCK"] == "election/jobs/nightly"
    assert (seen["FENCEPOST_LEASE"], leader["owner"]) == (leader["lease_id"], "me")
    token = {"X-Fence-Token": seen["FENCE_TOKEN"]}
    assert (await http.patch("/v1/data/orders/order-123", json={"note": "x"}, headers=token)).status_code == 200
    running.process.communicate("\n")
    assert await running.ended() == 7
    assert (await http.get("/v1/elections?name=jobs/nightly")).json()["leader"] is None


async def test_a_candidate_waits_and_is_elected_with_a_higher_term(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    first = lock("e", "sh", "-c", f"{EACH_TERM}; {FOR_EVER}", verb="elect")
    (old,) = await written(tmp_path / "terms")
    second = lock("e", "sh", "-c", EACH_TERM, verb="elect")
    await waiters(http, 1)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 128 + signal.SIGTERM
    assert await second.ended() == 0
    _, new = await written(tmp_path / "terms", lines=2)
    assert int(new.split()[0]) > int(old.split()[0])


async def lost_once(lock: StartLock, http: httpx.AsyncClient, tmp_path: Path, script: str = FOR_EVER) -> Running:
    """Start a candidate that campaigns again, and depose it."""
    command = f"{EACH_TERM}; {ENV}; {script}"
    running = lock("e", "--again", "--ttl", "12", "sh", "-c", command, verb="elect")
    await release(http, await variables_in(tmp_path / "env"))
    return running


async def test_again_campaigns_anew_and_the_next_term_is_higher(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    running = await lost_once(lock, http, tmp_path)
    old, new = (line.split() for line in await written(tmp_path / "terms", lines=2))
    assert int(new[0]) > int(old[0])
    assert not alive(int(old[1])), "the earlier term's command has ended"
    assert running.lines[0].startswith("fencepost elect: lost election/e, the command was ended: ")
    assert running.lines[1] == "fencepost elect: campaigning again for e"
    running.signal(signal.SIGTERM)
    assert await running.ended() == 128 + signal.SIGTERM


async def test_a_signal_ends_the_second_wait_as_it_ends_the_first(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    first = lock("e", "--again", "--ttl", "12", "sh", "-c", f"{ENV}; {FOR_EVER}", verb="elect")
    seen = await variables_in(tmp_path / "env")
    second = lock("e", "sh", "-c", f"{EACH_TERM}; {FOR_EVER}", verb="elect")
    await waiters(http, 1)
    await release(http, seen)
    await written(tmp_path / "terms")
    await waiters(http, 1)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 128 + signal.SIGTERM
    assert second.process.poll() is None


async def test_one_that_was_asked_to_end_does_not_campaign_again(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Its command takes its time to end, and meanwhile leadership is lost."""
    script = f"trap 'echo TERM >> signals' TERM; echo ready >> ready; {FOR_EVER}"
    running = lock("e", "--again", "--ttl", "12", "sh", "-c", f"{EACH_TERM}; {ENV}; {script}", verb="elect")
    seen = await variables_in(tmp_path / "env")
    await written(tmp_path / "ready")
    running.signal(signal.SIGTERM)
    await written(tmp_path / "signals")
    await release(http, seen)
    assert await running.ended() == 79
    assert len(whole_lines(tmp_path / "terms")) == 1


@pytest.mark.realtime
async def test_again_outlasts_a_gateway_that_is_away(lock: StartLock, demo_database: str, tmp_path: Path) -> None:
    async with gateway_process(demo_database, tmp_path) as gateway:
        command = f"{EACH_TERM}; {FOR_EVER}"
        running = lock("e", "--again", "--ttl", "2", "sh", "-c", command, url=gateway.url, verb="elect")
        await written(tmp_path / "terms")
        gateway.crash()

        async def campaigns_again() -> bool:
            return "campaigning again" in running.printed

        await eventually(campaigns_again)
        gateway.start()
        await gateway.serves()
        old, new = (line.split() for line in await written(tmp_path / "terms", lines=2))
        assert int(new[0]) > int(old[0])


async def test_without_a_gateway_again_does_not_wait_for_ever(lock: StartLock) -> None:
    running = lock("e", "--again", "true", url=NO_ONE, verb="elect")
    assert await running.ended() == 69


async def test_what_the_gateway_refuses_has_exit_code_2(lock: StartLock) -> None:
    for arguments in (("e", "--source", "no_such", "true"), ("e", "--claim", "true")):
        assert await lock(*arguments, verb="elect").ended() == 2


@pytest.mark.parametrize("arguments", [("", "true"), ("e",)])
def test_bad_usage_is_refused(arguments: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(main, ["elect", "--url", NO_ONE, *arguments])
    assert refused.exit_code == 2, refused.output
