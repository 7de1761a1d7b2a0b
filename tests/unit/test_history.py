"""Histories are written and read back as they were."""

from pathlib import Path

from fencepost.testing.history import NOT_READ, End, Invoke, Note, Recorder, read


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
