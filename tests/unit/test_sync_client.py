"""The synchronous client's calls are those of the asynchronous one, under the same signatures and docstrings."""

import inspect
from collections.abc import Callable, Iterator

import pytest

from fencepost.client import (
    Client,
    Lease,
    QueuedWrite,
    Submit,
    SyncClient,
    SyncLease,
    SyncQueuedWrite,
    SyncSubmit,
    SyncTerm,
    Term,
)

OTHERWISE = {"aclose", "batch", "leaders", "lost", "operation"}
"""They are close and wait_lost, or do more than passing a call on."""
INTERNAL = {"end", "on_loss", "renew", "send", "trust", "write"}
"""Methods of a lease that only the client itself calls."""
WITHOUT = "cancel_on_loss"
"""A parameter that no synchronous call has: a thread cannot be cancelled."""

MIRRORED = [
    (Client, SyncClient),
    (Lease, SyncLease),
    (Term, SyncTerm),
    (Submit, SyncSubmit),
    (QueuedWrite, SyncQueuedWrite),
]
mirrored = pytest.mark.parametrize(("of", "by"), MIRRORED)


def public(of: type) -> set[str]:
    names = {*dir(of), *inspect.get_annotations(of)} - INTERNAL
    return {name for name in names if not name.startswith("_")}


def calls(of: type, by: type) -> Iterator[tuple[str, Callable[..., object], Callable[..., object]]]:
    for name in ({"__init__"} if of is Client else set()) | public(of) - OTHERWISE:
        if inspect.isfunction(function := getattr(of, name, None)):
            yield name, function, getattr(by, name)


def of_threads(docstring: str | None) -> str:
    lines = [line for line in (docstring or "").split("\n") if not line.startswith(f"{WITHOUT}:")]
    return "\n".join(lines).replace("`async ", "`").replace("an `with`", "a `with`")


@mirrored
def test_every_public_name_has_its_counterpart(of: type, by: type) -> None:
    assert {name for name in public(of) if not hasattr(by, name)} <= {"aclose", "lost"}


@mirrored
def test_a_call_says_takes_and_passes_on_the_same(of: type, by: type) -> None:
    for name, function, passing in calls(of, by):
        parameters = {key: (p.kind, p.default) for key, p in inspect.signature(function).parameters.items()}
        parameters.pop(WITHOUT, None)
        found = inspect.signature(passing).parameters
        assert {key: (p.kind, p.default) for key, p in found.items()} == parameters, name
        assert of_threads(inspect.getdoc(function)) == (inspect.getdoc(passing) or ""), name
        body = inspect.getsource(passing).partition('"""')[2].rpartition('"""')[2] or inspect.getsource(passing)
        assert {key for key in parameters if key not in body} <= {"self"}, name


@mirrored
def test_an_attribute_says_the_same(of: type, by: type) -> None:
    for name, found in inspect.getmembers(of, lambda member: isinstance(member, property)):
        if name in public(of) - OTHERWISE:
            assert inspect.getdoc(getattr(by, name)) == inspect.getdoc(found), name
