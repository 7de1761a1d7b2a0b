"""The ZooKeeper source's names, orders, handles and URLs, without a server."""

import json

import pytest

from fencepost.locks.source import MOST_NATIVE, SourceConfigError, SourceError
from fencepost.locks.zookeeper.nodes import QueueNode, in_order, parent_of, token
from fencepost.locks.zookeeper.url import parse


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


def test_a_url_with_everything() -> None:
    settings = parse("zookeeper://us:p%40ss@h1,[::1]:7,h3:2182/a/b/?session_timeout_s=2.5", "zk")
    assert settings.where == "h1:2181,[::1]:7,h3:2182"
    assert settings.root == "/a/b/fencepost"
    assert settings.session_timeout_s == 2.5
    assert settings.credentials == "us:p@ss"
    assert "p@ss" not in repr(settings)
    assert parse("zookeeper://h", "zk").root == "/fencepost"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("zookeeper://", "wrong at host 1"),
        ("zookeeper://us:secret@", "wrong at host 1"),
        ("zookeeper://us:secret@h1,,h2", "wrong at host 2"),
        ("zookeeper://us:secret@h1:", "port"),
        ("zookeeper://us:secret@h1:0", "port"),
        ("zookeeper://us:secret@h1:70000", "port"),
        ("zookeeper://us:secret@h1:port", "port"),
        ("zookeeper://us:secret@[h1", "hosts"),
        ("zookeeper://us:secret\u2100@h1", "hosts"),
        ("zookeeper://us:1?secret@h1", "@"),
        ("zookeeper://us:1/secret//@h1", "@"),
        ("zookeeper://us:1#secret@h1", "@"),
        ("zookeeper://us@h1", "password"),
        ("zookeeper://us:@h1", "password"),
        ("zookeeper://:secret@h1", "user"),
        ("zookeeper://us:secret@h1/a//b", "the path"),
        ("zookeeper://us:secret@h1/a/../b", "the path"),
        ("zookeeper://us:secret@h1/a%00", "the path"),
        ("zookeeper://us:secret@h1?sessiontimeout=3", "sessiontimeout"),
        ("zookeeper://us:secret@h1?session_timeout_s=3&session_timeout_s=3", "session_timeout_s twice"),
        ("zookeeper://us:secret@h1?session_timeout_s=", "session_timeout_s"),
        ("zookeeper://us:secret@h1?session_timeout_s=nan", "session_timeout_s"),
        ("zookeeper://us:secret@h1?session_timeout_s=0.5", "session_timeout_s"),
        ("zookeeper://us:secret@h1?session_timeout_s=601", "session_timeout_s"),
        ("zookeeper://us:secret@h1?really", "not name=value"),
    ],
)
def test_a_wrong_url_is_named_without_its_password(url: str, named: str) -> None:
    with pytest.raises(SourceConfigError) as error:
        parse(url, "zk")
    assert "source zk" in str(error.value)
    assert named in str(error.value)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None
