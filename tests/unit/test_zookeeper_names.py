"""The ZooKeeper source's names, orders, handles and URLs, without a server."""

import json

import pytest

from fencepost.server.locks.source import MOST_NATIVE, SourceError
from fencepost.server.locks.zookeeper import QueueNode, in_order, parent_of, token


def test_a_lock_is_one_node_below_the_root() -> None:
    assert parent_of("/fencepost", "orders/order-123") == "/fencepost/orders%2Forder-123"
    assert parent_of("/fencepost", "..") == "/fencepost/%2E%2E"
    assert parent_of("/fencepost", "%2E%2E") == "/fencepost/%252E%252E"
    assert parent_of("/fencepost", "a.b") == "/fencepost/a.b"


def test_the_queue_is_in_order_also_where_its_counter_overflows() -> None:
    rising = ["2147483646", "2147483647", "-2147483648", "-2147483647"]
    names = [f"{guid}__lock__{number}" for guid, number in zip("dbca", rising, strict=True)]
    assert in_order("it", reversed(names)) == names
    assert in_order("it", names[2:] + names[:2]) == names
    around_zero = ["a__lock__-000000001", "b__rlock__0000000000", "c__lock__0000000001"]
    assert in_order("it", reversed(around_zero)) == around_zero


@pytest.mark.parametrize("child", ["config", "_c_7-lock-0000000001", "x__lock__", "x__lock__0000000001x"])
def test_what_is_no_place_in_a_queue_is_named(child: str) -> None:
    with pytest.raises(SourceError, match=child) as error:
        in_order("the lock", ["a__lock__0000000001", child])
    assert "the lock" in str(error.value)


@pytest.mark.parametrize("session", [0x1000_0000_0000_0001, -(2**63), -1, 2**63 - 1])
def test_a_handle_has_it_all(session: int) -> None:
    place = QueueNode("1f__lock__0000000003", 2**33 + 1, session, "wörker")
    assert QueueNode.from_handle("it", place.handle) == place
    assert place.guid == "1f"


@pytest.mark.parametrize(
    "change", [{"node": "../x"}, {"node": "a/b__lock__0000000001"}, {"czxid": None}, {"session": 3}]
)
def test_a_handle_of_something_else_is_refused(change: dict[str, object]) -> None:
    handle = {**json.loads(QueueNode("1f__lock__0000000003", 1, 1, "us").handle), **change}
    for wrong in (json.dumps(handle), "7", "", "[]"):
        with pytest.raises(SourceError, match="handle of lock 'it'"):
            QueueNode.from_handle("it", wrong)


def test_a_number_that_is_too_large_is_no_token() -> None:
    assert token("it", MOST_NATIVE) == MOST_NATIVE
    with pytest.raises(SourceError, match="epoch"):
        token("it", MOST_NATIVE + 1)
