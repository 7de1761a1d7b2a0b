"""Refusals of callers are counted until they are written down."""

from fencepost.observe.caller_refusals import DAY, MOST, OTHERS, CallerRefusals
from fencepost.observe.events import CallerRefused, Refused


def refused(caller: str, code: str = "FP037", detail: str = "no") -> CallerRefused:
    return CallerRefused(caller, code, detail)


def test_they_are_counted_by_caller_and_code() -> None:
    counted = CallerRefusals()
    for event in (refused("ann"), refused("ann", detail="last"), refused("ann", "FP045"), refused("bob")):
        counted.on_event(event)
    counted.on_event(Refused("orders", "patch", "FP001", "stale", None, None, None))
    assert counted.take() == {("ann", "FP037"): (2, "last"), ("ann", "FP045"): (1, "no"), ("bob", "FP037"): (1, "no")}
    assert counted.take() == {}


def test_what_could_not_be_written_down_is_added_to_what_came_since() -> None:
    counted = CallerRefusals()
    counted.on_event(refused("ann"))
    taken = counted.take()
    counted.on_event(refused("ann"))
    counted.give_back(taken)
    assert counted.take() == {("ann", "FP037"): (2, "no")}


def test_those_that_are_counted_apart_are_as_many_in_a_day_as_in_a_moment() -> None:
    """Each is a row of the database: who has many addresses must not make as many rows."""
    now = [0.0]
    counted = CallerRefusals(lambda: now[0])
    for number in range(MOST):
        counted.on_event(refused(f"address {number}"))
    counted.take()
    counted.on_event(refused("address new"))
    counted.on_event(refused("address 1"))
    assert set(counted.take()) == {(OTHERS, "FP037"), ("address 1", "FP037")}
    now[0] = DAY + 1
    counted.on_event(refused("address new"))
    assert set(counted.take()) == {("address new", "FP037")}
