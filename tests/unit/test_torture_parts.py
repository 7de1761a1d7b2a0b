"""Histories of several processes become one; and the counts that the processes share."""

from collections import Counter
from pathlib import Path

import pytest

from fencepost.testing.history import End, Fault, Invoke, Recorder, read
from fencepost.torture.errors import RunFailedError
from fencepost.torture.merging import Merged, merge
from fencepost.torture.play import require_accepted
from fencepost.torture.running import judge, require_shown
from fencepost.torture.tally import Counts
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
