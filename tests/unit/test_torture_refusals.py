"""What a refusal says of the history, where it was caused by what is no operation of it."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from fencepost.testing.checker import check
from fencepost.testing.history import End, Recorder
from fencepost.torture.holders.exchange import Answer, Exchange
from fencepost.torture.holders.outcomes import Refused, mark_read, outcome
from fencepost.torture.holders.sender import Sender
from fencepost.torture.tally import Tally


def stale(mark: int) -> Answer:
    return Answer(409, {}, json.dumps({"code": "FP001", "current_token": str(mark)}).encode())


def test_of_many_rows_it_is_not_known_which_one_was_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    operations = [
        recorder.invoke(process="w1", op="write", resource=f"t/{key}", token=3, value=f"v{key}") for key in (1, 2)
    ]

    async def refuse(*_: object) -> Answer:
        return stale(9)

    async def send() -> None:
        monkeypatch.setattr(Exchange, "send", refuse)
        sender = Sender(["http://127.0.0.1:1"], random.Random(1), Tally.create(tmp_path / "tally"), 0)
        assert await sender.send(operations, "PATCH", "/v1/data/t", {}, []) is None

    asyncio.run(send())
    assert [event.reason for event in recorder.history if isinstance(event, End)] == ["other", "other"]
    recorder.invoke(process="w1", op="read", resource="t/1").ok(value=None)
    assert check(recorder.history).valid


def test_a_token_of_an_earlier_generation_is_no_stale_one_of_the_history() -> None:
    generation = 123 << 48
    assert outcome(stale(generation - 1)) == Refused("other", "FP001")
    assert outcome(stale(generation)) == Refused("stale", "FP001", generation)


def test_a_mark_that_a_failover_has_raised_is_none_of_the_history() -> None:
    def read(mark: int) -> Answer:
        return Answer(200, {b"x-fence-mark": str(mark).encode()}, b"{}")

    generation = 123 << 48
    assert mark_read(read(generation - 1)) is None
    assert mark_read(read(generation)) == generation
    assert mark_read(Answer(200, {}, b"{}")) is None
