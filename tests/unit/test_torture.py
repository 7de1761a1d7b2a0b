"""fencepost torture: histories of several processes become one, what answers say, and the reads at the end."""

import asyncio
import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from tests.support.histories import Script, paused_holder
from tests.support.selection import runs_on
from tests.support.violations import Violation, judging, violations_in

from fencepost.cli.main import main
from fencepost.testing.checker import Verdict, assert_fenced, check
from fencepost.testing.history import NOT_READ, BadHistoryError, End, FaultEvent, Invoke, Note, Reason, Recorder, read
from fencepost.testing.servers.processes import range_of
from fencepost.testing.torture.assignment import BadInputError, Counts, Fenced, Kind, RunFailedError, Tally
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.faults import choose
from fencepost.testing.torture.holders import (
    HolderAnswer,
    HolderDatabase,
    HolderExchange,
    Sender,
    Unknown,
    WasRefused,
    mark_read,
    outcome,
)
from fencepost.testing.torture.merging import Merged, Voided, merge, read_all, written
from fencepost.testing.torture.report import write_report
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


def test_what_is_recorded_late_is_merged_where_it_began(tmp_path: Path) -> None:
    with Recorder(tmp_path / "part") as recorder:
        asked = time.monotonic_ns()
        recorder.invoke(process="a", op="read", resource="jobs/1").ok(value=None)
        taken = recorder.invoke(process="b", op="claim", resource="jobs/1", token=3, since=asked)
        taken.ok(value=None)
    merge([tmp_path / "part"], tmp_path / "whole", {})
    events = list(read(tmp_path / "whole"))
    assert [getattr(event, "process", "ends") for event in events] == ["b", "a", "ends", "ends"]


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


@pytest.mark.parametrize(("workload", "kind"), [("fenced-set", "sets"), ("idempotent", "ledger"), ("jobs", "jobs")])
async def test_a_set_that_is_gone_as_a_whole_is_lost(workload: str, kind: Kind, tmp_path: Path) -> None:
    resource = Fenced(PREFIX, kind).resource("s0r0")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w0", op="add", resource=resource, value="a").ok()
    verdict = await judged(workload, tmp_path)
    assert [violation.model for violation in verdict.violations] == ["set"]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([("b-1", "w2", "done"), ("w2", "b-1", "effect")], None),
        ([("b-1", "w2", "done")], None),
        ([("b-1", "w1", "new")], "misses 1 that were certainly in the set before: 'b-1'"),
        ([("b-1", "w2", "done"), ("w3", "b-1", "effect")], "shows 1 twice: 'b-1'"),
        ([("w2", "b-1", "effect"), ("w3", "b-1", "effect"), ("b-1", "w1", "new")], "shows 1 twice: 'b-1'"),
    ],
)
async def test_a_job_is_done_once(
    rows: list[tuple[str, str, str]], wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(*_: object) -> list[tuple[str, str, str]]:
        return rows

    monkeypatch.setattr(HolderDatabase, "fetch", fetch)
    table = Fenced(PREFIX, "plain_jobs")
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="w1", op="write", resource=table.resource("b-1"), value="w1").ok()
        recorder.invoke(process="w1", op="add", resource=table.resource("b"), value="b-1").ok()
        recorder.invoke(process="w2", op="write", resource=table.resource("b-1"), value="w2").unknown("")
        await read_all([], PREFIX, WORKLOADS["jobs-unfenced"], recorder, written([tmp_path / "part"]), database_url="-")
    merge([tmp_path / "part"], tmp_path / "whole", {})
    found = check(read(tmp_path / "whole")).violations
    assert [each.model for each in found] == ([] if wrong is None else ["set"])
    assert wrong is None or wrong in found[0].words


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


# Which tests run on which PostgreSQL, what an oracle's Violation is, and the ports that servers of tests get.

FIRST, SECOND = BOTH = ("embedded-18", "debian-15")
ANY, VERSIONS = (), (pytest.mark.versions,)


def collected(folder: str, *marks: pytest.MarkDecorator, file: str = "test_it.py", **parameters: object) -> pytest.Item:
    """Stand in for a test of this file, with these marks and parameters."""
    of_name = {mark.name: mark.mark for mark in marks}
    callspec = SimpleNamespace(params=parameters)
    item: Any = SimpleNamespace(path=Path("tests") / folder / file, callspec=callspec, get_closest_marker=of_name.get)
    return cast("pytest.Item", item)


def on(folder: str, marks: tuple[pytest.MarkDecorator, ...] = ANY, **how: bool) -> list[str]:
    """List the servers on which the two of a test run that were collected."""
    how = {"by_name": False, "spread": False} | how
    return [each for each in BOTH if runs_on(collected(folder, *marks, postgres=each), BOTH, **how)]


def test_a_test_runs_on_the_first_server_and_what_versions_change_on_both() -> None:
    assert on("integration") == [FIRST]
    assert on("integration", VERSIONS) == on("integration", VERSIONS, spread=True) == [*BOTH]
    assert runs_on(collected("unit"), BOTH, by_name=False, spread=True)


def test_all_tests_are_spread_over_the_servers_a_file_on_one() -> None:
    files = [f"test_{number}.py" for number in range(100)]
    ran = {
        server: [
            file
            for file in files
            if runs_on(collected("http", file=file, bin_dir=server), BOTH, by_name=False, spread=True)
        ]
        for server in BOTH
    }
    assert sorted(ran[FIRST] + ran[SECOND]) == sorted(files)
    assert min(len(ran[FIRST]), len(ran[SECOND])) > 30


def test_one_that_is_named_runs_on_both_but_in_folders_of_one_server() -> None:
    assert on("http", by_name=True) == [*BOTH]
    assert on("cli", by_name=True) == on("cli", VERSIONS, spread=True) == [FIRST]


def test_a_violation_is_found_in_a_group_and_in_what_an_exception_was_raised_from() -> None:
    violation = Violation("two hold x")
    later = TimeoutError()
    later.__cause__ = ExceptionGroup("tasks", [ValueError(), ExceptionGroup("inner", [violation])])
    assert violations_in(later) == [violation]
    assert violations_in(AssertionError("a mere one")) == violations_in(None) == []


def test_what_a_scenario_asserts_is_a_violation_and_says_what_was_asserted() -> None:
    with pytest.raises(Violation, match="failing_scenario: ") as raised, judging():
        failing_scenario()
    assert "the second holder" in str(raised.value)


def failing_scenario() -> None:
    raise AssertionError("the second holder")


@pytest.mark.parametrize(("error", "within"), [(TimeoutError(), 9.0), (AssertionError(), -1.0)])
def test_a_wait_that_came_to_its_end_and_what_comes_too_late_are_none(error: Exception, within: float) -> None:
    with pytest.raises(type(error)) as raised, judging(within):
        raise error
    assert raised.value is error


def test_no_two_workers_share_a_port_and_no_outgoing_connection_has_one() -> None:
    ranges = [range_of(worker, 32768) for worker in ("", *(f"gw{n}" for n in range(15)))]
    for one, other in itertools.combinations(ranges, 2):
        assert not set(one) & set(other)
    assert max(map(max, ranges)) < 32768
    assert range_of("gw0", 1024) == range(1), "the system chooses"


# What a Recorder takes, in memory and in a file, and that a file is read back as it was recorded.


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_field_that_cannot_be_is_refused_where_it_is_recorded(tmp_path: Path, *, in_memory: bool) -> None:
    recorder: Any = Recorder(None if in_memory else tmp_path / "history.jsonl")
    begin = {"process": "w1", "op": "write", "resource": "orders/7", "value": "a"}
    wrongs: tuple[dict[str, object], ...] = (
        {"op": "wrte"},
        {"token": "abc"},
        {"token": 2**63},
        {"token": True},
        {"value": {}},
        {"value": "\ud800"},
        {"rule": "epoc"},
    )
    for wrong in wrongs:
        [(field, value)] = wrong.items()
        with pytest.raises(BadHistoryError, match=re.escape(f"'{field}' cannot be {value!r}: it must be ")):
            recorder.invoke(**(begin | wrong))
    write = recorder.invoke(**begin, token=7)
    with pytest.raises(BadHistoryError, match="'reason' cannot be 'Stale': it must be one of stale, spent"):
        write.refused("Stale")
    write.ok()  # what was refused has not ended it
    assert_fenced(recorder)
    recorder.invoke(**begin, token=7).ok()
    with pytest.raises(AssertionError, match="orders/7"):
        assert_fenced(recorder)
    with pytest.raises(TypeError, match=r"takes a Recorder, or a history as read\(path\)"):
        assert_fenced(recorder.path)
    recorder.close()


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path, seed=7, workload="register") as recorder:
        write = recorder.invoke(process="w1", op="write", resource="orders/7", token=33, value="a", key="k")
        stale = recorder.invoke(process="w2", op="write", resource="orders/7", token=32, value="b", rule="epoch")
        fault = recorder.fault("paused", "w1")
        write.ok(replayed=True)
        stale.refused("stale", mark=33)
        fault.healed()
        reading = recorder.invoke(process="w1", op="read", resource="orders/8")
        reading.ok(value=None)
        recorder.invoke(process="w1", op="read_set", resource="s").ok(values=("a", "b"))
        recorder.invoke(process="w1", op="claim", resource="orders/7", token=34).unknown("the connection broke")
        recorder.note("the end")
    history = read(path)
    assert history.header == {"history": "fencepost/1", "seed": 7, "workload": "register"}
    events = list(history)
    assert events == list(history)
    first = events[0]
    assert first == Invoke(first.time, 1, "w1", "write", "orders/7", token=33, value="a", key="k")
    ends = [event for event in events if isinstance(event, End)]
    assert [end.value for end in ends] == [NOT_READ, NOT_READ, None, NOT_READ, NOT_READ]
    assert (ends[1].reason, ends[1].mark, ends[3].values) == ("stale", 33, ("a", "b"))
    assert isinstance(events[-1], Note)
    assert [event.time for event in events] == sorted(event.time for event in events)


# The report as a file: what it says, that it loads nothing, and that nothing of a history is taken for HTML.

EVIL = "<script>alert(1)</script>\"'&\u202e\x00\ud800"


class Elements(HTMLParser):
    """Collects the elements of a page and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def report(history: Path, folder: Path) -> tuple[str, str]:
    words = write_report(history, check(read(history)), folder / "report.html")
    return (folder / "report.html").read_text("utf-8"), words


def test_a_violation_is_at_the_top_with_the_checkers_words_and_the_command(tmp_path: Path) -> None:
    history = paused_holder(fenced=False).write(tmp_path / "h.jsonl")
    page, words = report(history, tmp_path)
    (violation,) = check(read(history)).violations
    text = " ".join(Elements(page).words)
    for expected in (
        "Not valid: 1 violation in 10 operations",
        "workload register, source builtin, seed 7, 5.21 s, 1 resource",
        "9 accepted, 0 refused, 1 unknown",
        "Faults: paused 1",
        "fencepost torture --seed 7 --workload register --source builtin",
        violation.words.splitlines()[0],
    ):
        assert expected in text
        assert expected in words
    assert "the lock's TTL is 5 s" in text


def test_text_of_a_history_is_shown_and_never_run(tmp_path: Path) -> None:
    evil = EVIL.removesuffix("\ud800")  # JSON in UTF-8 cannot have it
    story = Script(seed=evil, workload=evil, source=evil, command=f"x {evil}", **{evil: evil})
    story.fault(0, 5, evil, evil)
    story.note(1, evil)
    story.did(2, 3, evil, "write", evil, token=9, value=evil, key=evil)
    story.did(4, 6, evil, "write", evil, token=8, value=f"{evil}2", key=evil)
    story.did(7, 8, evil, "read", evil, answer_value=evil)
    story.did(9, 10, evil, "read", evil, event="unknown", answer_why=evil)
    page, _ = report(story.write(tmp_path / "h.jsonl"), tmp_path)
    plain = report(paused_holder(fenced=False).write(tmp_path / "plain.jsonl"), tmp_path)[0]
    elements = Elements(page)
    assert set(elements.names) <= set(Elements(plain).names)
    assert elements.names.count("script") == 1
    assert "<script>alert(1)</script>" in " ".join(elements.words)
    assert not re.search("[\u202e\x00]", page)
    assert r"\u202e\x00" in page, "they are written out"


def run(*arguments: str | Path, command: str = "report") -> Result:
    return CliRunner().invoke(main, [command, *map(str, arguments)])


def test_the_command_prints_the_verdict_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    good = paused_holder().write(tmp_path / "good.jsonl")
    result = run(good)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "Valid: no violation in 10 operations")
    assert (tmp_path / "good.html").exists()
    bad = paused_holder(fenced=False).write(tmp_path / "bad.jsonl")
    result = run(bad, "-o", tmp_path / "named.html")
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "Not valid: 1 violation in 10 operations")
    assert result.output.endswith(f"The report: {tmp_path / 'named.html'}\n")


@pytest.mark.parametrize(("command", "option"), [("report", "-o"), ("check", "--porcupine")])
def test_a_history_is_not_written_over_and_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, command: str, option: str
) -> None:
    history = paused_holder().write(tmp_path / "h.jsonl")
    before = history.read_bytes()
    itself = run(history, option, tmp_path / "." / "h.jsonl", command=command)
    assert (itself.exit_code, "is the history itself" in itself.output) == (2, True)
    nowhere = run(history, option, tmp_path / "no such folder" / "r", command=command)
    assert (nowhere.exit_code, "could not be written to" in nowhere.output) == (2, True)
    assert ([each.name for each in tmp_path.iterdir()], history.read_bytes()) == (["h.jsonl"], before)
