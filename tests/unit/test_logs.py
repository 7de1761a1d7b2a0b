"""What is logged of refusals: each, as long as they are few."""

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from fencepost.observe.events import Refused
from fencepost.observe.logs import MOST_REFUSALS, EventLog, configure


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


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_name_cannot_move_the_cursor_nor_begin_a_line(
    capfd: pytest.CaptureFixture[str], style: Literal["console", "json"]
) -> None:
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        configure("info", style)
        for name in ("\x1b[2J\x1b]0;owned\x07", "a\nb [error] all is lost", "\x9b31m", "\u202egnp.exe", "na\u2028me"):
            logging.getLogger("fencepost.test").warning("of %s", name)
            EventLog().on_event(Refused("orders", "patch", "FP001", name, name, 1, 2))
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    written = capfd.readouterr().err
    assert len(written.splitlines()) == written.count("\n") == 10
    assert not [line for line in written.splitlines() if not line.isprintable()]
