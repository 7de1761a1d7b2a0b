"""Messages of a log and the writes that they carry: what is read, what is made, what is refused by name."""

import pytest

from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Token
from fencepost.queues.log import Headers, Message
from fencepost.queues.message import KNOWN, MalformedMessageError, WriteMessage, message_of, nonce_of, read_message

KEY = b"orders/order-123"
NONCE = "0123456789abcdef"
FULL = WriteMessage(
    "orders/order-123",
    "PATCH",
    b'{"status": "shipped"}',
    b"select=id",
    b"return=minimal",
    b"application/json",
    b"application/json; charset=utf-8",
    b"key-1",
    Token(34),
    NONCE,
    (("X-Request-Id", b"7"), ("traceparent", b"00-1"), ("baggage", b"a=b")),
)


def _message(*headers: tuple[str, bytes], key: bytes = KEY, method: bytes = b"PATCH") -> Message:
    return Message(key, b"{}", (("method", method), *headers))


def test_a_write_comes_back_as_it_was_put_into_a_message() -> None:
    message = message_of(FULL)
    assert message.key == KEY
    assert tuple(name for name, _ in message.headers if name in KNOWN) == KNOWN
    assert read_message(message) == FULL


def test_only_the_method_is_needed() -> None:
    message = message_of(WriteMessage("orders/order-123", "DELETE", None))
    assert message == Message(KEY, None, (("method", b"DELETE"),))
    read = read_message(message)
    assert (read.method, read.body, read.query, read.token, read.nonce) == ("DELETE", None, b"", None, None)


def test_names_of_headers_are_read_in_any_case_and_headers_of_others_stay() -> None:
    read = read_message(Message(KEY, b"{}", (("Method", b"PUT"), ("X-Trace", b"1"), ("tracestate", b"s"))))
    assert read.method == "PUT"
    assert read.others == (("X-Trace", b"1"), ("tracestate", b"s"))


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ((), "header method: missing"),
        ((("method", b"GET"),), "header method: GET"),
        ((("method", b"patch"),), "header method: patch"),
        ((("method", b"PATCH"), ("method", b"PUT")), "header method: it stands there twice"),
        ((("method", b"PATCH"), ("Method", b"PATCH")), "header method: it stands there twice"),
        ((("method", b"PATCH"), ("if-match", b"1")), "header if-match: unknown"),
        ((("method", b"PATCH"), ("fence_token", b"1")), "header fence_token: unknown"),
        ((("method", b"PATCH"), ("fence-token", b"034")), "header fence-token: 034"),
        ((("method", b"PATCH"), ("fence-token", b"")), "header fence-token"),
        ((("method", b"PATCH"), ("write-nonce", b"0123")), "header write-nonce: 0123"),
        ((("method", b"PATCH"), ("write-nonce", NONCE.upper().encode())), "header write-nonce"),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_name(headers: Headers, named: str) -> None:
    with pytest.raises(MalformedMessageError, match=rf"^{named}"):
        read_message(Message(KEY, b"{}", headers))


@pytest.mark.parametrize("key", [b"", b"orders/\xff"])
def test_a_key_that_is_no_text_is_refused(key: bytes) -> None:
    with pytest.raises(MalformedMessageError, match=r"^key: "):
        read_message(_message(key=key))


@pytest.mark.parametrize("key", [b"orders", b"/1", b"orders/%zz"])
def test_a_key_that_names_no_resource_is_refused_when_it_is_asked_for(key: bytes) -> None:
    read = read_message(_message(key=key))
    with pytest.raises(MalformedMessageError, match=r"^key: "):
        _ = read.named


def test_the_resource_is_read_from_the_key() -> None:
    assert read_message(_message(key=b"lines/a%2Cb,7")).named == Resource("lines", ("a,b", "7"))


def test_the_nonce_of_a_malformed_message_is_found_where_it_is_one() -> None:
    assert nonce_of(_message(("write-nonce", NONCE.encode()), ("what", b"?"))) == NONCE
    assert nonce_of(_message(("write-nonce", b"\xff"))) is None
    assert nonce_of(_message()) is None
