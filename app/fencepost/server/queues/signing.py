"""Whose write a message carries: the header `caller`, which a gateway signs and a consumer verifies (decision 0044).

    2026-07.eyJuIjoiand0Oi….q83v…
    key id . payload . HMAC-SHA256 over both, the queue, and all else of the message

The payload has the caller's name, role, claims and patterns of locks, and when it was signed. So who can put messages
into a log, and has no key, can neither make up a caller, nor change a caller's message, nor put its header on another
one. What it can do is to put the same message there again. That is a copy, and known by its record (write_id.py), which
stays until each copy is decided that came while records are kept (queue_looks.sql). One that came later is refused. So
the header is the first one, and the others stand as they were signed, in their order and letters: with other bytes it
would be no copy.

The keys are those that seal tokens (fence/seal.py).
"""

import hmac
import json
from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.seal import SealKeys, decoded, encoded
from fencepost.server.queues.log import Message
from fencepost.server.queues.message import CALLER, MalformedMessageError
from fencepost.server.queues.write_id import joined

CLOCKS_DIFFER: Final = 600.0
"""By how many seconds clocks may differ: those of gateways, consumers and PostgreSQL (queue_no_copy_waits)."""
_DOMAIN: Final = b"fencepost queued caller 1\n"
"""Before what is authenticated: a seal of a token proves no caller, and a caller's header seals nothing."""


def sign(message: Message, queue: str, keys: SealKeys, caller: Caller, now: float) -> Message:
    """Make a message of a queue one of this caller. `now`: seconds since 1970."""
    unsigned = unsigned_of(message)
    body = f"{keys.first}.{encoded(_payload(caller, now))}"
    proof = f"{body}.{_mac(keys.keys[keys.first], body, queue, unsigned)}"
    return replace(unsigned, headers=((CALLER, proof.encode("ascii")), *unsigned.headers))


def unsigned_of(message: Message) -> Message:
    """Give a message without its caller."""
    return replace(message, headers=tuple(each for each in message.headers if each[0].lower() != CALLER))


class LateMessageError(MalformedMessageError):
    """The message may be a copy of one whose record is forgotten."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A caller who is proven. `at`: when the message was signed, in seconds since 1970."""

    caller: Caller
    at: float

    def require_in_time(self, came: float, kept_for: float) -> None:
        """Raise LateMessageError where the message came too late. `came`: when it came into the log, or some time
        before that. `kept_for`: how many seconds what became of a message is known, and so how long after it was signed
        it may come.
        """
        if came - self.at > kept_for:
            raise LateMessageError(
                f"header {CALLER}: the message came into the log {came - self.at:.0f} s after it was signed, or later:"
                " it may have been there before, and what became of it then is known no more"
            )

    def require_remembered(self, forgotten_to: float | None) -> None:
        """Raise LateMessageError where what became of it may be forgotten. `forgotten_to`: when the newest record
        was made that is; None: none is.
        """
        if forgotten_to is not None and self.at <= forgotten_to + CLOCKS_DIFFER:
            raise LateMessageError(
                f"header {CALLER}: the message was signed when others were whose records are forgotten, and there is"
                " none of it: it may have been there before"
            )


def verify(message: Message, queue: str, keys: SealKeys) -> Signed:
    """Verify whose message it is. Raises MalformedMessageError."""
    body, _, mac = (_header(message) or "").rpartition(".")
    key_id = body.partition(".")[0][:32]
    key = keys.keys.get(key_id)
    if key is None:
        raise MalformedMessageError(
            f"header {CALLER}: it is signed with the key {key_id!r}, which is not here, or no more"
        )
    is_first = bool(message.headers) and message.headers[0][0] == CALLER
    if not is_first or not hmac.compare_digest(_mac(key, body, queue, unsigned_of(message)).encode(), mac.encode()):
        raise MalformedMessageError(f"header {CALLER}: no gateway with the key {key_id} has signed it for this message")
    return Signed(*_read(body))


def claimed(message: Message) -> Caller | None:
    """Read whose message it says it is; None: nobody's, or nothing that can be read. Nothing is proven."""
    text = _header(message)
    try:
        return None if text is None else _read(text.rpartition(".")[0])[0]
    except MalformedMessageError:
        return None


def _mac(key: bytes, body: str, queue: str, unsigned: Message) -> str:
    said = b"".join((_DOMAIN, f"{queue}\n{body}\n".encode(), joined(unsigned)))
    return encoded(hmac.digest(key, said, "sha256"))


def _header(message: Message) -> str | None:
    for name, value in message.headers:
        if name == CALLER or name.lower() == CALLER:
            return value.decode("ascii", "replace")
    return None


def _payload(caller: Caller, now: float) -> bytes:
    said: dict[str, object] = {"n": caller.name, "r": caller.role, "t": int(now)}
    if caller.claims:
        said["c"] = caller.claims
    if caller.locks is not None:
        said["l"] = list(caller.locks)
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _read(body: str) -> tuple[Caller, int]:
    """Read a payload: the caller, and when it was signed."""
    try:
        said: Any = json.loads(decoded(body.partition(".")[2]))
        locks = said.get("l")
        caller = Caller(
            str(said["n"]),
            str(said["r"]),
            str(said.get("c", "")),
            locks=None if locks is None else tuple(str(each) for each in locks),
        )
        return caller, int(said["t"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        # Nothing of a gateway's; or a program that has the key, and does not keep to the form.
        raise MalformedMessageError(f"header {CALLER}: it is no key, payload and signature with dots between") from None
