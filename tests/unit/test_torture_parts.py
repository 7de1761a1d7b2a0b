"""Histories of several processes become one; and the counts that the processes share."""

import functools
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from fencepost.testing.history import End, Fault, Invoke, Recorder, read
from fencepost.torture import running
from fencepost.torture.config import Config
from fencepost.torture.errors import RunFailedError
from fencepost.torture.merging import Merged, merge
from fencepost.torture.play import require_accepted
from fencepost.torture.running import judge, require_shown
from fencepost.torture.tally import Counts, Tally
from fencepost.torture.workloads import WORKLOADS


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
    assert len({event.id for event in events if isinstance(event, Invoke | Fault)}) == 3
    process = {event.id: event.process for event in events if isinstance(event, Invoke)}
    assert [(process[event.id], event.event) for event in events if isinstance(event, End)] == [
        ("b", "ok"),
        ("a", "unknown"),
    ]


def test_the_last_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path / "killed") as recorder:
        recorder.invoke(process="a", op="read", resource="r/1").ok(value="x")
    whole = (tmp_path / "killed").read_bytes()
    (tmp_path / "killed").write_bytes(whole[:-5])
    merge([tmp_path / "killed"], tmp_path / "whole", {})
    assert [type(event) for event in read(tmp_path / "whole")] == [Invoke]


def test_what_was_accepted_and_refused_is_counted(tmp_path: Path) -> None:
    with Recorder(tmp_path / "part") as recorder:
        recorder.invoke(process="a", op="acquire", resource="lock/r/1").ok(token=1)
        write = functools.partial(recorder.invoke, process="a", op="write", resource="r/1", token=1)
        write(value="a").refused("stale")
        write(value="b").refused("unissued")
        write(value="c").refused("unissued")
        write(value="d").unknown("lost")
        recorder.fault("paused", "a").healed()
    merged = merge([tmp_path / "part"], tmp_path / "whole", {})
    assert merged.accepted == {"acquire": 1}
    assert merged.refused == {("write", "unissued"): 2, ("write", "stale"): 1}


def test_a_run_whose_writes_were_all_refused_has_no_verdict() -> None:
    refused = Counter({("write", "unissued"): 2})
    with pytest.raises(RunFailedError, match=r"no add and no write was accepted \(2 as unissued refused\)"):
        require_shown(WORKLOADS["register"], Merged(Counter(acquire=9, read=9), refused))
    with pytest.raises(RunFailedError, match="no acquire was accepted"):
        require_shown(WORKLOADS["mutex"], Merged())
    require_shown(WORKLOADS["mutex"], Merged(Counter(acquire=1)))
    require_shown(WORKLOADS["register"], Merged(Counter(write=1), refused))


def test_many_parts_are_a_history(tmp_path: Path) -> None:
    for number in range(5):
        with Recorder(tmp_path / f"part{number}") as recorder:
            for _ in itertools.repeat(None, 20):
                recorder.invoke(process=f"w{number}", op="read", resource="r/1").ok(value=None)
    merge([tmp_path / f"part{number}" for number in range(5)], tmp_path / "whole", {})
    assert len(list(read(tmp_path / "whole"))) == 200
    assert json.loads((tmp_path / "whole").read_text().splitlines()[0])["history"] == "fencepost/1"


def test_all_processes_count_in_one_file(tmp_path: Path) -> None:
    ours, theirs = Tally.create(tmp_path / "tally"), Tally(tmp_path / "tally")
    ours.count(0, "accepted")
    theirs.count(1, "accepted")
    theirs.count(1, "refused")
    theirs.count(1, "unsent")
    assert ours.total() == Counts(accepted=2, refused=1, unknown=0, unsent=1)
    assert ours.total().operations == 3


def test_a_run_in_which_nothing_was_accepted_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"no operation of the holders was accepted \(2 refused, 1 unknown"):
        require_accepted(Counts(accepted=0, refused=2, unknown=1, unsent=0))
    require_accepted(Counts(accepted=1, refused=0, unknown=0, unsent=0))
    with Recorder(tmp_path / "whole") as recorder:
        recorder.invoke(process="w1", op="claim", resource="r/1", token=1).unknown("no answer")
    with pytest.raises(RunFailedError, match="cannot be judged: nothing to check"):
        judge(tmp_path / "whole")


def test_the_history_of_a_run_that_cannot_be_judged_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / running.HISTORY).write_text("an earlier run's")

    def play(_config: Config, workshop: Path, *_: object) -> tuple[list[Path], dict[str, str]]:
        with Recorder(workshop / "part") as recorder:
            recorder.invoke(process="w1", op="claim", resource="r/1", token=1).unknown("no answer")
        return [workshop / "part"], {}

    monkeypatch.setattr(running, "_play", play)
    with pytest.raises(RunFailedError, match=rf"nothing to check.* is kept: {out}/unjudged\.jsonl"):
        running.run(Config(out, seed=1))
    assert sorted(path.name for path in out.iterdir()) == [running.HISTORY, running.UNJUDGED]
    assert (out / running.HISTORY).read_text() == "an earlier run's"
    assert [event.op for event in read(out / running.UNJUDGED) if isinstance(event, Invoke)] == ["claim"]
