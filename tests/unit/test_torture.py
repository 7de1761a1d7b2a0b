"""fencepost torture: histories of several processes become one, what answers say, and the reads at the end."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fencepost.testing.checker import Verdict, check
from fencepost.testing.history import End, FaultEvent, Invoke, Reason, Recorder, read
from fencepost.testing.torture.assignment import BadInputError, Counts, Fenced, Kind, RunFailedError, Tally
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.faults import choose
from fencepost.testing.torture.holders import (
    HolderAnswer,
    HolderExchange,
    Sender,
    Unknown,
    WasRefused,
    mark_read,
    outcome,
)
from fencepost.testing.torture.merging import Merged, Voided, merge, read_all, written
from fencepost.testing.torture.running import judge, require_accepted, require_faults, require_shown, share_of
from fencepost.testing.torture.stages import own_available
from fencepost.testing.torture.workloads import WORKLOADS


def test_parts_are_merged_in_the_order_of_time_with_ids_of_their_own(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a") as a, Recorder(tmp_path / "b") as b:
        first = a.invoke(process="a", op="read", resource="r/1")
        second = b.invoke(process="b", op="read", resource="r/1")
        fault = a.fault("paused", "b")
        second.ok(value=None)
        first.unknown("lost")
        fault.healed()
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "whole", {"seed": 1})

    whole = read(tmp_path / "whole")
    events = list(whole)
    assert whole.header["seed"] == 1
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert len({event.id for event in events if isinstance(event, Invoke | FaultEvent)}) == 3
    process = {event.id: event.process for event in events if isinstance(event, Invoke)}
    assert [(process[event.id], event.event) for event in events if isinstance(event, End)] == [
        ("b", "ok"),
        ("a", "unknown"),
    ]


def test_a_run_whose_writes_were_all_refused_has_no_verdict() -> None:
    refused = Counter({("write", "unissued"): 2})
    with pytest.raises(RunFailedError, match=r"no add and no write was accepted \(2 as unissued refused\)"):
        require_shown(WORKLOADS["register"], Merged(Counter(acquire=9, read=9), refused))
    with pytest.raises(RunFailedError, match="no acquire was accepted"):
        require_shown(WORKLOADS["mutex"], Merged())
    require_shown(WORKLOADS["mutex"], Merged(Counter(acquire=1)))
    require_shown(WORKLOADS["register"], Merged(Counter(write=1), refused))


def test_a_run_in_which_nothing_was_accepted_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"no operation of the holders was accepted \(2 refused, 1 unknown"):
        require_accepted(Counts(accepted=0, refused=2, unknown=1, unsent=0))
    require_accepted(Counts(accepted=1, refused=0, unknown=0, unsent=0))
    with Recorder(tmp_path / "whole") as recorder:
        recorder.invoke(process="w1", op="claim", resource="r/1", token=1).unknown("no answer")
    with pytest.raises(RunFailedError, match="cannot be judged: nothing to check"):
        judge(tmp_path / "whole")


def answered(status: int, **problem: object) -> HolderAnswer:
    return HolderAnswer(status, {}, json.dumps(problem).encode() if problem else b"")


@pytest.mark.parametrize("status", [200, 201, 204])
def test_success_is_what_happened(status: int) -> None:
    assert outcome(answered(status)) == answered(status)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (409, "FP001", "stale"),
        (404, "FP006", "missing"),
        (423, "FP011", "held"),
        (409, "FP018", "unissued"),
        (409, "23505", "other"),
        (503, "FP015", "other"),
    ],
)
def test_a_refusal_has_a_reason(status: int, code: str, reason: Reason) -> None:
    assert outcome(answered(status, code=code)) == WasRefused(reason, code)


def test_a_503_that_may_be_repeated_did_nothing() -> None:
    assert outcome(answered(503, code="FP010", retryable=True)) == WasRefused("other", "FP010")


@pytest.mark.parametrize(
    "given",
    [
        answered(503, code="FP009", retryable=False),
        answered(500, code="FP023"),
        HolderAnswer(504, {}, b"<html>a proxy's"),
        answered(409),
    ],
    ids=str,
)
def test_all_else_is_unknown(given: HolderAnswer) -> None:
    assert isinstance(outcome(given), Unknown)


def stale(mark: int) -> HolderAnswer:
    return HolderAnswer(409, {}, json.dumps({"code": "FP001", "current_token": str(mark)}).encode())


def test_of_many_rows_it_is_not_known_which_one_was_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    operations = [
        recorder.invoke(process="w1", op="write", resource=f"t/{key}", token=3, value=f"v{key}") for key in (1, 2)
    ]

    async def refuse(*_: object) -> HolderAnswer:
        return stale(9)

    async def send() -> None:
        monkeypatch.setattr(HolderExchange, "send", refuse)
        sender = Sender(["http://127.0.0.1:1"], random.Random(1), Tally.create(tmp_path / "tally"), 0)
        assert await sender.send(operations, "PATCH", "/v1/data/t", {}, []) is None

    asyncio.run(send())
    assert [event.reason for event in recorder.history if isinstance(event, End)] == ["other", "other"]
    recorder.invoke(process="w1", op="read", resource="t/1").ok(value=None)
    assert check(recorder.history).valid


def test_a_token_of_an_earlier_generation_is_no_stale_one_of_the_history() -> None:
    generation = 123 << 48
    assert outcome(stale(generation - 1)) == WasRefused("other", "FP001")
    assert outcome(stale(generation)) == WasRefused("stale", "FP001", generation)


@pytest.mark.parametrize(
    ("failover", "token", "reason"),
    [
        ("before the answer", 122 << 48, "other"),
        ("before the answer", 123 << 48, "stale"),
        ("after the answer", 122 << 48, "stale"),
        ("never", 122 << 48, "stale"),
    ],
)
def test_where_no_mark_is_shown_the_failovers_of_the_run_tell(
    failover: str, token: int, reason: Reason, tmp_path: Path
) -> None:
    def failed_over() -> Voided:
        return Voided(time.monotonic_ns(), 123 << 48)

    voided = []
    with Recorder(tmp_path / "part") as part:
        operation = part.invoke(process="w1", op="write", resource="r/1", token=token, value="v", rule="epoch")
        if failover == "before the answer":
            voided.append(failed_over())
        operation.refused("stale")
    if failover == "after the answer":
        voided.append(failed_over())
    merge([tmp_path / "part"], tmp_path / "whole", {}, voided)
    assert [event.reason for event in read(tmp_path / "whole") if isinstance(event, End)] == [reason]


def test_a_mark_that_a_failover_has_raised_is_none_of_the_history() -> None:
    def read(mark: int) -> HolderAnswer:
        return HolderAnswer(200, {b"x-fence-mark": str(mark).encode()}, b"{}")

    generation = 123 << 48
    assert mark_read(read(generation - 1)) is None
    assert mark_read(read(generation)) == generation
    assert mark_read(HolderAnswer(200, {}, b"{}")) is None


PREFIX = "torture_1"


@asynccontextmanager
async def empty_gateway() -> AsyncIterator[str]:
    """Serve tables that are there, and have no rows."""
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the reader at the end hangs up
            while head := await reader.readline():
                await reader.readuntil(b"\r\n\r\n")
                is_row = re.match(rb"GET /v1/data/\w+/", head) is not None
                status, body = (b"404 Not Found", b"{}") if is_row else (b"200 OK", b"[]")
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 2\r\n\r\n%s" % (status, body))
        writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*served)


async def judged(workload: str, directory: Path) -> Verdict:
    """Judge a history whose worker part is in `directory`, after the last reads from a gateway without rows."""
    part, last, whole = directory / "part", directory / "last", directory / "whole"
    with Recorder(last) as recorder:
        async with empty_gateway() as url:
            await read_all([url], PREFIX, WORKLOADS[workload], recorder, written([part]))
    merge([part, last], whole, {})
    return check(read(whole))


@pytest.mark.parametrize(("workload", "kind"), [("fenced-set", "sets"), ("idempotent", "ledger")])
async def test_a_set_that_is_gone_as_a_whole_is_lost(workload: str, kind: Kind, tmp_path: Path) -> None:
    resource = Fenced(PREFIX, kind).resource("s0r0")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w0", op="add", resource=resource, value="a").ok()
    verdict = await judged(workload, tmp_path)
    assert [violation.model for violation in verdict.violations] == ["set"]


async def test_a_row_that_is_gone_is_lost(tmp_path: Path) -> None:
    resource = Fenced(PREFIX, "scoped").resource("k0")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w0", op="write", resource=resource, token=1, value="a").ok()
    verdict = await judged("register", tmp_path)
    assert [violation.model for violation in verdict.violations] == ["register"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (" , ", "names no fault: for a run without faults give none"),
        ("kill-holder,all", "all cannot stand there"),
        ("all,failover", "after `all` only kinds to leave out can follow"),
        ("failover", "the fault failover is not possible here"),
    ],
)
def test_a_list_of_faults_that_cannot_be_carried_out_is_refused(names: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        choose(names, frozenset({"holders"}))


def test_one_of_the_faults_that_were_named_must_have_come() -> None:
    with pytest.raises(RunFailedError, match=r"over before one of its faults came \(failover\)"):
        require_faults("failover", set())
    require_faults("failover,kill-holder", {"failover"})
    require_faults("all,-failover", set())


@pytest.mark.parametrize(
    ("faults", "gone", "seconds", "ended"),
    [
        ("failover", set(), 1, False),
        ("failover,kill-holder", {"failover"}, 1, True),
        ("all,-failover", set(), 1, True),
        ("none", set(), 1, True),
        ("failover", set(), 60, True),
    ],
)
def test_operations_end_no_run_before_one_of_the_faults_that_were_named_is_over(
    faults: str, gone: set[str], seconds: float, ended: bool
) -> None:
    config = Config(out=Path("nowhere"), seed=1, faults=faults, minutes=1.0, operations=10)
    assert (share_of(config, seconds, 500, gone) >= 1) is ended


def test_holders_that_stop_in_time_keep_the_connections_that_leases_of_postgresql_end_with() -> None:
    chosen = choose("all", own_available(Config(Path("out"), 1, "client", "postgres-advisory")))
    ends = {"kill-gateway", "partition-database", "cut-before-commit", "cut-after-commit", "cut-after-bytes"}
    assert not set(chosen) & (ends | {"restart-fast", "restart-immediate", "failover"})
    assert {"pause-holder", "kill-holder", "pause-gateway", "partition-client", "cut-client"} <= set(chosen)
    assert ends <= set(choose("all", own_available(Config(Path("out"), 1, "client", "redis"))))
    assert ends <= set(choose("all", own_available(Config(Path("out"), 1, "mutex", "postgres-advisory"))))
