"""What a Recorder takes, in memory and in a file, and that a file is read back as it was recorded."""

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.testing.checker import assert_fenced
from fencepost.testing.history import NOT_READ, BadHistoryError, End, Invoke, Note, Recorder, read


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
