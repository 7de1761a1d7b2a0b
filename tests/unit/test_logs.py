"""What is logged of refusals: each, as long as they are few."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from fencepost.observe.events import Refused
from fencepost.observe.logs import MOST_REFUSALS, EventLog


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[structlog.typing.EventDict]]:
    caplog.set_level(logging.INFO)
    # A logger that has logged keeps what was configured then (cache_logger_on_first_use), and is not captured.
    monkeypatch.setattr("fencepost.observe.logs.log", structlog.stdlib.get_logger("fencepost"))
    with structlog.testing.capture_logs() as entries:
        yield entries


def refused(code: str) -> Refused:
    return Refused("orders", "patch", code, "detail", "orders/1", 1, 2)


def test_a_flood_of_refusals_is_counted_and_not_logged_one_by_one(logged: list[structlog.typing.EventDict]) -> None:
    log = EventLog()
    for _ in range(MOST_REFUSALS + 20):
        log.on_event(refused("FP001"))
    log.on_event(refused("FP002"))
    assert len(logged) == MOST_REFUSALS
    log.log_withheld()
    assert [(entry["code"], entry["count"]) for entry in logged[MOST_REFUSALS:]] == [("FP001", 20), ("FP002", 1)]


def test_after_that_refusals_are_logged_again(logged: list[structlog.typing.EventDict]) -> None:
    log = EventLog()
    for _ in range(MOST_REFUSALS + 1):
        log.on_event(refused("FP001"))
    log.log_withheld()
    log.on_event(refused("FP001"))
    log.log_withheld()
    assert [entry["event"] for entry in logged[MOST_REFUSALS:]] == ["refused, and not logged one by one", "refused"]
