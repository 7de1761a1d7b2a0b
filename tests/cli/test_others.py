"""`fencepost elect`, `fencepost batch` and the relay that stands between a command and its lock."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.cli.running import FENCEPOST, StartLock, environment, release, variables_in, waiters, whole_lines, written
from tests.support.gateways import gateway_process
from tests.support.manual_clock import ManualClock
from tests.support.servers import until
from tests.support.use_cases import patch_line
from tests.support.use_cases import written as lines_written

from fencepost.cli.main import main
from fencepost.cli.running import Child, Relay, members
from fencepost.client import SystemClock
from fencepost.testing.servers.processes import PATIENCE, alive, wait_until

# `fencepost elect`: a command that runs as long as we lead.

ENV = "env > env.new && mv env.new env"
FOR_EVER = "while :; do sleep 0.02; done"
EACH_TERM = "echo $FENCEPOST_TERM $$ >> terms"
NO_ONE = "http://127.0.0.1:9"


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
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


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
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


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_again_campaigns_anew_and_the_next_term_is_higher(
    lock: StartLock, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    # Start a candidate that campaigns again, and depose it.
    command = f"{EACH_TERM}; {ENV}; {FOR_EVER}"
    running = lock("e", "--again", "--ttl", "12", "sh", "-c", command, verb="elect")
    await release(http, await variables_in(tmp_path / "env"))
    old, new = (line.split() for line in await written(tmp_path / "terms", lines=2))
    assert int(new[0]) > int(old[0])
    assert not alive(int(old[1])), "the earlier term's command has ended"
    assert running.lines[0].startswith("fencepost elect: lost election/e, the command was ended: ")
    assert running.lines[1] == "fencepost elect: campaigning again for e"
    running.signal(signal.SIGTERM)
    assert await running.ended() == 128 + signal.SIGTERM


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
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


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
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


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
@pytest.mark.realtime
async def test_again_outlasts_a_gateway_that_is_away(lock: StartLock, demo_database: str, tmp_path: Path) -> None:
    async with gateway_process(demo_database, tmp_path) as gateway:
        command = f"{EACH_TERM}; {FOR_EVER}"
        running = lock("e", "--again", "--ttl", "2", "sh", "-c", command, url=gateway.url, verb="elect")
        await written(tmp_path / "terms")
        gateway.crash()
        await until(lambda: "campaigning again" in running.printed)
        gateway.start()
        await gateway.serves()
        old, new = (line.split() for line in await written(tmp_path / "terms", lines=2))
        assert int(new[0]) > int(old[0])


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_without_a_gateway_again_does_not_wait_for_ever(lock: StartLock) -> None:
    running = lock("e", "--again", "true", url=NO_ONE, verb="elect")
    assert await running.ended() == 69


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_what_the_gateway_refuses_has_exit_code_2(lock: StartLock) -> None:
    for arguments in (("e", "--source", "no_such", "true"), ("e", "--claim", "true")):
        assert await lock(*arguments, verb="elect").ended() == 2


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
@pytest.mark.parametrize("arguments", [("", "true"), ("e",)])
def test_bad_usage_is_refused(arguments: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(main, ["elect", "--url", NO_ONE, *arguments])
    assert refused.exit_code == 2, refused.output


# `fencepost batch`: a file of lines, what was refused of it, and going on where it stopped.

LINES: list[object] = [
    {**patch_line("order-123", 1001, amount=0), "path": "orders/order-123?select=amount"}, b"\n", b"no JSON\n",
    b'{"claim": "orders/order-124", "token": 1002, "token": 1003}\n', {**patch_line("order-123", 1, note="stale")},
    {"claim": "orders/order-125", "token": 1004},
]  # fmt: skip


def run(url: str, *arguments: str, stdin: bytes = b"") -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [*FENCEPOST, "batch", *arguments], input=stdin, env=environment(FENCEPOST_URL=url), capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_what_was_refused_is_printed_by_the_numbers_of_the_file_and_nothing_is_done_twice(
    gateway_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    text = b"".join(lines_written(line) for line in LINES).replace(b'"amount": 0', b'"amount": 1.10')
    file.write_bytes(text[:-1])
    code, refused, said = run(gateway_url, str(file))
    assert [(verdict["number"], verdict["status"]) for verdict in refused] == [(3, 400), (4, 400), (5, 409)]
    assert (code, said.splitlines()[-1]) == (1, "2 accepted, 3 refused")
    code, verdicts, said = run(gateway_url, str(file), "--all", "--from-line", "5")
    assert [(each["number"], each["status"], each.get("replayed")) for each in verdicts] == [
        (5, 409, None), (6, 200, True),
    ]  # fmt: skip
    assert said.splitlines()[-1] == "1 accepted (1 of them had been done before), 1 refused"
    first = text.splitlines()[0]
    code, verdicts, said = run(gateway_url, "-", "--all", "--run", str(file), stdin=first)
    assert (code, verdicts[0]["body"], verdicts[0]["replayed"]) == (0, {"amount": 1.1}, True), "the key is the text's"
    other = tmp_path / "other"
    other.write_bytes(first.replace(b"1001", b"2001"))
    anew = [run(gateway_url, each, "--all", stdin=other.read_bytes()) for each in ("-", "-", str(other))]
    said_of = [(verdicts[0]["status"], verdicts[0].get("replayed")) for _, verdicts, _ in anew]
    assert said_of == [(200, None), (409, None), (409, None)], "another run is not this one: its token is spent"


def test_a_line_behind_the_end_of_the_file_is_bad_usage(gateway_url: str) -> None:
    assert run(gateway_url, "-", "--from-line", "3", stdin=b"\n\n")[0] == 0, "that is where a file goes on that is done"
    code, _, said = run(gateway_url, "-", "--from-line", "4", stdin=b"\n\n")
    assert (code, said.splitlines()[-1]) == (2, "Error: --from-line 4: <stdin> has 2 lines.")


def test_where_verdicts_cannot_be_printed_it_says_where_to_go_on(gateway_url: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(lines_written(LINES[-1]) + b"no JSON\n")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*FENCEPOST, "batch", file, "--run", "a name"], stdout=full, stderr=subprocess.PIPE, check=False,
            env=environment(FENCEPOST_URL=gateway_url, PYTHONUNBUFFERED=""),  # what is left would be written at the end
        )  # fmt: skip
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1] == b"fencepost batch: go on with --from-line 2 --run 'a name'"


def test_a_gateway_that_is_not_there_is_69_and_says_where_to_go_on() -> None:
    code, verdicts, said = run("http://127.0.0.1:9", "-", "--from-line", "2", stdin=b"\n" + lines_written(LINES[0]))
    assert (code, verdicts) == (69, [])
    assert re.fullmatch("fencepost batch: go on with --from-line 2 --run [0-9a-f]{16}", said.splitlines()[-1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_it_says_where_to_go_on(gateway_url: str, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*FENCEPOST, "batch", "-", "--all"], env=environment(FENCEPOST_URL=gateway_url), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"".join(lines_written(patch_line("order-123", 1001 + each, note="x")) for each in range(300)))
    process.stdin.flush()
    assert process.stdout is not None
    numbers = [json.loads(process.stdout.readline())["number"] for _ in range(300)]
    assert numbers == list(range(1, 301)), "also those behind the last whole 256, while it waits for the next line"
    wait_until(lambda: "poll" in Path(f"/proc/{process.pid}/wchan").read_text(), what="the last one is printed")
    process.send_signal(number)
    assert process.wait(PATIENCE) == code
    _, said = process.communicate()
    assert b"fencepost batch: go on with --from-line 301 --run " in said
    fence = httpx.get(f"{gateway_url}/v1/fences?resource=orders/order-123", trust_env=False)
    assert fence.json()["mark"] == "1300"


# What stands between signals and the command, in this very process.


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@asynccontextmanager
async def running(*command: str, may_go_on: bool) -> AsyncIterator[Child]:
    relay = Relay()
    with relay.handle_signals():
        child = relay.start(command, dict(os.environ), may_go_on=lambda: may_go_on)
        try:
            yield child
        finally:
            clock = SystemClock()
            assert await child.terminate(clock, clock.now() - 1) == []
            child.exit_code()


async def stopped(child: Child) -> None:
    child.send(signal.SIGSTOP)
    await until(lambda: state(child.group) == "T", what="the command stopped")


async def test_a_stopped_command_goes_on_when_we_do() -> None:
    async with running("sleep", "60", may_go_on=True) as child:
        await stopped(child)
        os.kill(os.getpid(), signal.SIGCONT)
        await until(lambda: state(child.group) == "S", what="the command going on")


async def test_a_stopped_command_stays_stopped_when_the_lock_is_lost() -> None:
    async with running("sleep", "60", may_go_on=False) as child:
        await stopped(child)
        answer = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, answer.set)  # handled after SIGCONT
        os.kill(os.getpid(), signal.SIGCONT)
        os.kill(os.getpid(), signal.SIGALRM)
        await answer.wait()
        assert asyncio.get_running_loop().remove_signal_handler(signal.SIGALRM)
        assert state(child.group) == "T"


async def test_a_zombie_is_no_member_of_its_group() -> None:
    async with running("sh", "-c", "sleep 60 & exit 0", may_go_on=True) as child:
        await child.ended.wait()
        left = members(child.group)
        assert len(left) == 1
        assert child.group not in left


async def group_has(child: Child, count: int) -> None:
    await until(lambda: len(members(child.group)) == count, what=f"{count} processes of the command")


async def test_what_the_command_has_left_in_its_group_is_waited_for(tmp_path: Path) -> None:
    clock, go = ManualClock(), tmp_path / "go"
    async with running("sh", "-c", f"(until [ -e {go} ]; do sleep 0.02; done) & exit 0", may_go_on=True) as child:
        ended = asyncio.create_task(child.all_ended(clock, 5))
        await child.ended.wait()
        await clock.advance(10)
        assert not ended.done()
        go.touch()
        await group_has(child, 0)
        await clock.advance(10)
        assert ended.done()


@pytest.mark.parametrize("end", ["wait", "ulimit -c 0; kill -INT $$", "ulimit -c 0; kill -QUIT $$", "exit 130"])
async def test_an_interrupt_leaves_no_background_command(end: str) -> None:
    """A shell makes them ignore INT and QUIT; and Ctrl-C at a terminal that was lent does not come to us."""
    async with running("env", "--default-signal", "sh", "-c", f"sleep 600 & {end}", may_go_on=True) as child:
        if end == "wait":
            await group_has(child, 2)
            child.send(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await child.all_ended(SystemClock(), PATIENCE)
        assert members(child.group) == []
