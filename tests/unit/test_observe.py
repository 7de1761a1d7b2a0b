"""Every event reaches a metric, and docs/operations.md lists every metric; what is logged and counted of refusals."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from tests.support.asking import PROBLEM_MEMBERS

from fencepost import client
from fencepost.server.fence import problem_types
from fencepost.server.fence.problem_types import BAD_REQUEST, PROBLEM_TYPES, STALE_TOKEN, ProblemType
from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.resource import in_json
from fencepost.server.fence.token import MAX_TOKEN, MissingRow, Spent, Stale, Token
from fencepost.server.observe import events
from fencepost.server.observe.logs import MOST_REFUSALS, EventLog, configure
from fencepost.server.observe.metrics import DAY, METRICS, MOST_COUNTED, OTHERS, CallerRefusals, Metrics, QueueFigures

MOVES: dict[events.Event, str] = {
    events.CallerRefused("jwt:issuer|ann", "FP045", "The lock is not for it."): (
        'fencepost_callers_refused_total{code="FP045"} 1.0'
    ),
    events.RequestTurnedAway("10.0.0.7", "FP031", "Host: a is not served."): (
        'fencepost_requests_turned_away_total{code="FP031"} 1.0'
    ),
    events.Refused("orders", "patch", "FP001", "older", "orders/1", 33, 34): (
        'fencepost_operations_total{table="orders",verb="patch",verdict="FP001"} 1.0'
    ),
    events.LeaseAsked("mint", "done", tokens=7): "fencepost_tokens_issued_total 7.0",
    events.RowPutAside("jobs", "jobs/7", 5): 'fencepost_rows_put_aside_total{table="jobs"} 1.0',
    events.QueueFailed("gone"): "fencepost_lock_queue_failures_total 1.0",
    events.HolderUnknown("orders", "late"): 'fencepost_holders_unknown_total{table="orders"} 1.0',
    events.CatalogLoaded(1, 5, 2): 'fencepost_tables{protected="yes"} 2.0',
    events.ListenerLost("gone"): "fencepost_listener_losses_total 1.0",
    events.OriginJudged(accepted=True, generation=1, reason=None): "fencepost_origin_accepted 1.0",
    events.ConnectionTrouble("none left"): "fencepost_connection_troubles_total 1.0",
    events.Pruned("marks", 3): 'fencepost_records_pruned_total{what="marks"} 3.0',
    events.PruningFailed("late"): "fencepost_pruning_failures_total 1.0",
    events.BatchesFail("no privilege"): "fencepost_batch_failures_total 1.0",
    events.SourceQuarantined("etcd", "backwards"): 'fencepost_source_quarantined{source="etcd"} 1.0',
    events.SealKeysRead(("one",)): "fencepost_seal_keys_read_total 1.0",
    events.SealKeysUnreadable("gone"): "fencepost_seal_key_failures_total 1.0",
    events.KeysFetched(2, ()): "fencepost_jwks_changes_total 1.0",
    events.KeysNotFetched("away"): "fencepost_jwks_failures_total 1.0",
    events.SourceTrouble("etcd", "gone"): 'fencepost_source_troubles_total{source="etcd"} 1.0',
    events.ConsumerPaused("kafka:q", "away"): 'fencepost_queue_paused{queue="kafka:q"} 1.0',
    events.ConsumerResumed("kafka:q"): 'fencepost_queue_paused{queue="kafka:q"} 0.0',
    events.ConsumerFailed("kafka:q", "Traceback"): 'fencepost_queue_faults_total{queue="kafka:q"} 1.0',
    events.QueueBlocked("kafka:q", "t/a", 0, 7, "its row is locked"): (
        'fencepost_queue_blocked_total{queue="kafka:q"} 1.0'
    ),
    events.DeadLettered("kafka:q", "t/a", 0, 7, "no column x"): (
        'fencepost_queue_dead_lettered_total{queue="kafka:q"} 1.0'
    ),
}
"""What the exposition has after the event. Accepted is not hashable, and has a test of its own."""


@pytest.mark.parametrize("event", MOVES, ids=lambda event: type(event).__name__)
def test_an_event_is_counted(event: events.Event) -> None:
    metrics = Metrics()
    assert MOVES[event] not in lines(metrics)
    metrics.on_event(event)
    assert MOVES[event] in lines(metrics)


def test_accepted_writes_are_counted_with_their_rows() -> None:
    metrics = Metrics()
    for rows in (1, 4):
        metrics.on_event(events.Accepted("orders", "patch", rows))
    assert 'fencepost_operations_total{table="orders",verb="patch",verdict="accepted"} 2.0' in lines(metrics)
    assert 'fencepost_rows_written_total{table="orders",verb="patch"} 5.0' in lines(metrics)


def test_no_kind_of_event_is_left_out() -> None:
    assert {type(event) for event in MOVES} | {events.Accepted} == set(events.EVENTS)


def test_the_page_lists_every_metric_with_its_labels() -> None:
    documented: dict[str, set[str]] = {}
    operations = Path(__file__).parents[2] / "docs" / "operations.md"
    for row in re.findall(r"^\| `fencepost_.*", operations.read_text(), re.MULTILINE):
        _, names, labels, *_ = row.split("|")
        documented |= {name: set(re.findall("`(.+?)`", labels)) for name in re.findall("`(.+?)`", names)}
    metrics = Metrics()
    for event in (events.Accepted("orders", "patch", 1), *MOVES):
        metrics.on_event(event)
    for each in METRICS:
        metrics.record(each, 1, *each.labels)
    assert documented == exposed(metrics)


def test_what_is_not_known_any_more_of_a_queue_has_no_sample() -> None:
    metrics = Metrics()
    metrics.queue("kafka:q", 0, QueueFigures(3, 1.5, 1, 2, 3, 4, 5))
    metrics.queue("kafka:q", 0, QueueFigures(3, None, 1, 2, 3, 4, 5))
    shown = [line for line in lines(metrics) if line.startswith(("fencepost_queue_lag", "fencepost_queue_oldest"))]
    assert shown == ['fencepost_queue_lag{partition="0",queue="kafka:q"} 3.0']


def exposed(metrics: Metrics) -> dict[str, set[str]]:
    """Give the labels of each metric, by its name as documented."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    return {name: labels for name, labels in found.items() if not name.endswith("_created")}


def lines(metrics: Metrics) -> list[str]:
    return metrics.exposition().decode().splitlines()


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[structlog.typing.EventDict]]:
    caplog.set_level(logging.INFO)
    # A logger that has logged keeps what was configured then (cache_logger_on_first_use), and is not captured.
    monkeypatch.setattr("fencepost.server.observe.logs.log", structlog.stdlib.get_logger("fencepost"))
    with structlog.testing.capture_logs() as entries:
        yield entries


def refused(code: str) -> events.Refused:
    return events.Refused("orders", "patch", code, "detail", "orders/1", 1, 2)


def test_a_flood_of_refusals_is_counted_and_not_logged_one_by_one(logged: list[structlog.typing.EventDict]) -> None:
    log = EventLog()
    for _ in range(MOST_REFUSALS + 20):
        log.on_event(refused("FP001"))
    log.on_event(refused("FP002"))
    assert len(logged) == MOST_REFUSALS
    log.log_withheld()
    assert [(entry["code"], entry["count"]) for entry in logged[MOST_REFUSALS:]] == [("FP001", 20), ("FP002", 1)]


@contextmanager
def configured(level: Literal["debug", "info"], style: Literal["console", "json"]) -> Iterator[None]:
    handlers, before = logging.root.handlers[:], logging.root.level
    try:
        configure(level, style)
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(before)


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize("text", ["n", "\n", "\U0001f600"])
def test_no_line_has_more_than_8_kb_whatever_a_request_sends(
    capfd: pytest.CaptureFixture[str], style: Literal["console", "json"], text: str
) -> None:
    long, other = text * 300_000, logging.getLogger("fencepost.test")
    with configured("debug", style):
        for event in MOVES:
            given = {each.name: getattr(event, each.name) for each in fields(event)}
            longer: dict[str, Any] = {name: long for name, value in given.items() if isinstance(value, str)}
            longer |= {name: (long, long) for name, value in given.items() if isinstance(value, tuple)}
            EventLog().on_event(replace(event, **longer))
            assert 0 < len(capfd.readouterr().err.encode()) <= 8000, event
        other.error("of %s", long, exc_info=ValueError(long))
    written = capfd.readouterr().err
    assert len(written.encode()) <= 8000
    assert f"ValueError: {in_json(text)}" in written if style == "json" else "ValueError: " in written
    assert "cut: 3" in written


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_name_cannot_move_the_cursor_nor_begin_a_line(
    capfd: pytest.CaptureFixture[str], style: Literal["console", "json"]
) -> None:
    with configured("info", style):
        for name in ("\x1b[2J\x1b]0;owned\x07", "a\nb [error] all is lost", "\x9b31m", "\u202egnp.exe", "na\u2028me"):
            logging.getLogger("fencepost.test").warning("of %s", name)
            EventLog().on_event(events.Refused("orders", "patch", "FP001", name, name, 1, 2))
    written = capfd.readouterr().err
    assert len(written.splitlines()) == written.count("\n") == 10
    assert not [line for line in written.splitlines() if not line.isprintable()]


def of_caller(caller: str, code: str = "FP037", detail: str = "no") -> events.CallerRefused:
    return events.CallerRefused(caller, code, detail)


def test_they_are_counted_by_caller_and_code() -> None:
    counted = CallerRefusals()
    for event in (of_caller("ann"), of_caller("ann", detail="last"), of_caller("ann", "FP045"), of_caller("bob")):
        counted.on_event(event)
    counted.on_event(events.Refused("orders", "patch", "FP001", "stale", None, None, None))
    assert counted.take() == {("ann", "FP037"): (2, "last"), ("ann", "FP045"): (1, "no"), ("bob", "FP037"): (1, "no")}
    assert counted.take() == {}


def test_what_could_not_be_written_down_is_added_to_what_came_since() -> None:
    counted = CallerRefusals()
    counted.on_event(of_caller("ann"))
    taken = counted.take()
    counted.on_event(of_caller("ann"))
    counted.give_back(taken)
    assert counted.take() == {("ann", "FP037"): (2, "no")}


def test_those_that_are_counted_apart_are_as_many_in_a_day_as_in_a_moment() -> None:
    """Each is a row of the database: who has many addresses must not make as many rows."""
    now = [0.0]
    counted = CallerRefusals(lambda: now[0])
    for number in range(MOST_COUNTED):
        counted.on_event(of_caller(f"address {number}"))
    counted.take()
    counted.on_event(of_caller("address new"))
    counted.on_event(of_caller("address 1"))
    assert set(counted.take()) == {(OTHERS, "FP037"), ("address 1", "FP037")}
    now[0] = DAY + 1
    counted.on_event(of_caller("address new"))
    assert set(counted.take()) == {("address new", "FP037")}


# Problems: codes are unique and documented, and a body satisfies both conventions.


# A code that was given out is never reused and never changed. Last, the exception that the client raises.
CONTRACT = {
    "FP001": (409, "stale-token", client.StaleToken),
    "FP002": (409, "spent-token", client.SpentToken),
    "FP003": (428, "token-required", client.TokenRequired),
    "FP004": (400, "malformed-token", client.BadRequest),
    "FP005": (403, "unprotected-table", client.Forbidden),
    "FP006": (404, "row-not-found", client.RowNotFound),
    "FP007": (404, "unknown-table", client.NotFound),
    "FP008": (409, "wrong-token-source", client.WrongTokenSource),
    "FP009": (503, "outcome-unknown", client.OutcomeUnknown),
    "FP010": (503, "database-unavailable", client.Unavailable),
    "FP011": (423, "lock-held", client.LockHeld),
    "FP012": (410, "lease-lost", client.LeaseLost),
    "FP013": (409, "key-in-flight", client.OutcomeUnknown),
    "FP014": (422, "key-reused", client.BadRequest),
    "FP015": (503, "source-quarantined", client.Unavailable),
    "FP016": (400, "bad-request", client.BadRequest),
    "FP017": (413, "body-too-large", client.BadRequest),
    "FP018": (409, "unissued-token", client.UnissuedToken),
    "FP019": (404, "no-such-route", client.NotFound),
    "FP020": (405, "method-not-allowed", client.BadRequest),
    "FP021": (406, "not-acceptable", client.BadRequest),
    "FP022": (415, "unsupported-media-type", client.BadRequest),
    "FP023": (500, "internal-error", client.OutcomeUnknown),
    "FP024": (503, "source-unavailable", client.Unavailable),
    "FP025": (502, "source-failed", client.SourceFailed),
    "FP026": (503, "queue-unavailable", client.Unavailable),
    "FP027": (503, "submission-unknown", client.OutcomeUnknown),
    "FP028": (502, "queue-failed", client.ApiError),
    "FP029": (404, "write-not-found", client.NotFound),
    "FP030": (409, "resource-stopped", client.ApiError),
    "FP031": (421, "wrong-host", client.BadRequest),
    "FP032": (403, "cross-site", client.Forbidden),
    "FP033": (408, "request-too-slow", client.Unavailable),
    "FP034": (431, "head-too-large", client.BadRequest),
    "FP035": (503, "too-many-connections", client.Unavailable),
    "FP036": (401, "authentication-required", client.Unauthenticated),
    "FP037": (401, "invalid-credential", client.Unauthenticated),
    "FP038": (403, "insufficient-scope", client.Forbidden),
    "FP039": (503, "verification-unavailable", client.Unavailable),
    "FP041": (403, "seal-refused", client.SealRefused),
    "FP042": (503, "no-seal-keys", client.Unavailable),
    "FP043": (403, "role-not-allowed", client.Forbidden),
    "FP044": (403, "queued-as-role", client.Forbidden),
    "FP045": (403, "lock-forbidden", client.Forbidden),
    "FP046": (429, "rate-limited", client.Unavailable),
    "FP047": (503, "earlier-line-first", client.Unavailable),
    "FP048": (503, "too-many-letters", client.Unavailable),
    "FP049": (412, "row-changed", client.RowChanged),
}

# Problems whose code is an SQLSTATE of PostgreSQL's, with one of them.
OF_POSTGRESQL = {
    "23503": (409, "constraint-violation", client.ConstraintViolated),
    "22P02": (400, "invalid-value", client.BadRequest),
    "42501": (403, "permission-denied", client.Forbidden),
    "55P03": (503, "database-busy", client.Unavailable),
    "P0001": (400, "database-refused", client.BadRequest),
}


def test_the_contract_has_every_problem_with_its_status() -> None:
    listed: set[tuple[str | None, int, str]] = {(code, status, slug) for code, (status, slug, _) in CONTRACT.items()}
    listed |= {(None, status, slug) for status, slug, _ in OF_POSTGRESQL.values()}
    declared = {(kind.code, kind.status, kind.slug) for kind in PROBLEM_TYPES}
    assert declared == listed, "a new problem gets a line in CONTRACT or OF_POSTGRESQL; lines that are there stay"


def test_a_request_gets_each_problem() -> None:
    tests = Path(__file__).parents[1]
    # Where tests send requests.
    asked = ("http", "sources", "integration")
    texts = [file.read_text() for folder in asked for file in (tests / folder).rglob("test_*.py")]
    for code, (status, _, _) in (CONTRACT | OF_POSTGRESQL).items():
        found = [text for text in texts if f'"{code}"' in text and re.search(rf"\b{status}\b", text)]
        assert found, f"no test of {', '.join(asked)} has {code} with {status}: add one that sends a request"


def test_every_type_is_in_the_tuple() -> None:
    declared = {value for value in vars(problem_types).values() if isinstance(value, ProblemType)}
    assert declared == set(PROBLEM_TYPES)
    mapped = [state for kind in PROBLEM_TYPES for state in kind.sqlstates]
    assert len(mapped) == len(set(mapped)), "an SQLSTATE, or a class of them, becomes one type of problem"


def test_a_body_has_all_members_of_both_conventions() -> None:
    for kind in PROBLEM_TYPES:
        body = json.loads(json.dumps(Problem(kind, "what happened").body()))
        assert body.keys() >= PROBLEM_MEMBERS
        assert (body["type"], body["status"]) == (f"/problems/{kind.slug}", kind.status)
        assert body["detail"] == body["message"] == "what happened"
        assert body["retryable"] is (kind.status in (408, 423, 429, 503) or kind.code == "FP013"), kind.slug


@pytest.mark.parametrize("text", ["n", "ж", "\U0001f600", "\ud800"])
def test_a_body_shows_the_beginning_and_the_end_of_what_is_too_long(text: str) -> None:
    long = f"The column {text * 900_000} is none of orders."
    problem = Problem(BAD_REQUEST, long, long, long, resource=long, extra={"rows": [{"resource": long}], "at": (long,)})
    body = json.loads(json.dumps(problem.body()))
    sentences = [(body[name], 1000) for name in ("detail", "message", "hint", "details")]
    names = [(name, 2600) for name in (body["resource"], body["rows"][0]["resource"], *body["at"])]
    for shown, most in sentences + names:
        assert most - 100 < len(shown.encode("utf-8", "surrogatepass")) <= most
        assert re.fullmatch(r"The column (.)\1+… \(cut: 900030 characters in all\) …\1+ is none of orders\.", shown)
    for kept in ("ж" * 500, "n" * 1000):
        assert Problem(BAD_REQUEST, kept).detail == kept


def test_tokens_are_strings() -> None:
    body = Problem(STALE_TOKEN, "x", presented_token=Token(MAX_TOKEN - 1), current_token=MAX_TOKEN).body()
    assert (body["presented_token"], body["current_token"]) == (str(MAX_TOKEN - 1), str(MAX_TOKEN))


def test_verdicts_become_problems() -> None:
    stale = problem_of(Stale("orders/x", Token(35), 36), "strict")
    assert (stale.name, stale.http_status, stale.retry_after) == ("FP001", 409, None)
    spent = problem_of(Spent("orders/x", Token(36), 36), "strict")
    assert (spent.name, spent.current_token) == ("FP002", 36)
    assert "--rule epoch" in str(spent.hint)
    assert problem_of(MissingRow("orders/x"), "strict").name == "FP006"
