"""Whose write a message carries: signed by a gateway, and of no use on any other message."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.seal import SealKeys, encoded
from fencepost.server.queues.log import Message
from fencepost.server.queues.message import (
    MalformedMessageError,
    WriteMessage,
    claimed,
    message_of,
    read_message,
    sign,
    verify,
)

QUEUE = "kafka:orders"
KEYS = SealKeys({"new": b"n" * 32, "old": b"o" * 32})
WEB = Caller("jwt:|worker-a", "web", '{"tenant": "Zoë"}', locks=("orders/*",))
PLAIN = message_of(
    WriteMessage("orders/k1", "PATCH", b'{"n":1}', prefer=b"return=minimal", idempotency_key=b"a", nonce="0" * 16)
)
SIGNED = sign(PLAIN, QUEUE, KEYS, WEB, 1000.0)
OTHER = sign(replace(PLAIN, key=b"orders/k2"), QUEUE, KEYS, replace(WEB, role="other"), 1000.0)


def verified(message: Message, *, queue: str = QUEUE, keys: SealKeys = KEYS) -> Caller:
    return verify(message, queue, keys).caller


def with_header(name: str, value: bytes) -> Message:
    return replace(SIGNED, headers=tuple((each, value if each == name else old) for each, old in SIGNED.headers))


def forged(role: str) -> bytes:
    """Make up a header with all but the key."""
    key, _, mac = SIGNED.headers[0][1].split(b".")
    return b".".join((key, encoded(f'{{"n":"x","r":"{role}","t":1000}}'.encode()).encode(), mac))


def test_the_caller_is_who_signed_and_the_rest_stays() -> None:
    for found in (verified(SIGNED), claimed(SIGNED)):
        assert found is not None
        assert (found.name, found.role, found.claims, found.locks) == (WEB.name, WEB.role, WEB.claims, WEB.locks)
    assert replace(read_message(SIGNED), caller=None) == read_message(PLAIN)
    assert claimed(PLAIN) is None
    assert claimed(with_header("caller", b"?")) is None


CHANGES: dict[str, Callable[[], Message]] = {
    "another row": lambda: replace(SIGNED, key=b"orders/k2"),
    "another body": lambda: replace(SIGNED, value=b'{"n":2}'),
    "another method": lambda: with_header("method", b"PUT"),
    "another answer": lambda: with_header("prefer", b"return=representation"),
    "another Idempotency-Key": lambda: with_header("idempotency-key", b"b"),
    "another nonce": lambda: with_header("write-nonce", b"1" * 16),
    "another one's header": lambda: replace(SIGNED, headers=(OTHER.headers[0], *SIGNED.headers[1:])),
    "another role": lambda: with_header("caller", forged("owner")),
    "no signature": lambda: with_header("caller", SIGNED.headers[0][1].rpartition(b".")[0]),
    "nothing": lambda: with_header("caller", b""),
    # The write is the same, and a copy would not be known by its content.
    "a header of others": lambda: replace(SIGNED, headers=(*SIGNED.headers, ("x-a", b"1"))),
    "another order": lambda: replace(SIGNED, headers=(SIGNED.headers[0], *SIGNED.headers[:0:-1])),
    "the caller last": lambda: replace(SIGNED, headers=(*SIGNED.headers[1:], SIGNED.headers[0])),
    "a capital": lambda: replace(SIGNED, headers=(("Caller", SIGNED.headers[0][1]), *SIGNED.headers[1:])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_header_is_of_no_use_on_another_message(change: str) -> None:
    with pytest.raises(MalformedMessageError, match=r"^header caller: "):
        verified(CHANGES[change]())


def test_a_header_is_of_one_queue_and_of_a_key_that_is_there() -> None:
    with pytest.raises(MalformedMessageError, match="no gateway with the key new has signed it"):
        verified(SIGNED, queue="kafka:payments")
    with pytest.raises(MalformedMessageError, match="signed with the key 'new', which is not here"):
        verified(SIGNED, keys=SealKeys({"old": b"o" * 32}))
    with pytest.raises(MalformedMessageError, match="no gateway"):
        verified(SIGNED, keys=SealKeys({"new": b"x" * 32}))
    assert verified(SIGNED, keys=SealKeys({"newer": b"x" * 32, **KEYS.keys})).role == "web"


def test_a_message_that_may_have_been_there_before_and_is_forgotten_is_refused() -> None:
    signed = verify(SIGNED, QUEUE, KEYS)
    signed.require_in_time(1060.0, 60.0)
    with pytest.raises(MalformedMessageError, match="100 s after it was signed"):
        signed.require_in_time(1100.0, 60.0)
