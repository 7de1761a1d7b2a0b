"""The messages of a queue: what one says about its write, by which id it is known, and whose it is.

The key of a message is the resource's canonical name, the value its JSON body. Headers that begin with `x-`, `trace` or
`baggage` are other people's, and stay with the message. Any other name that is not known is refused: it may be a
misspelled one that was to change what the write does.
"""

import hashlib
import hmac
import json
import re
import secrets
import struct
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.resource import MalformedResourceError, Resource, parse_resource
from fencepost.server.fence.seal import Presented, SealedToken, SealKeys, decoded, encoded, parse_presented, quotable
from fencepost.server.fence.token import MalformedTokenError
from fencepost.server.queues.log import MOST_OFFSET, Headers, Message, Position, Received

# The id of a write that goes through a log: `<queue>.<partition>.<offset>.<last part>`.
#
# The last part is the nonce that a gateway gave the message, 16 hexadecimal digits; of a message without one it is a
# hash of the message, of its position and of the time at which it was appended. So a message has the same id however
# often it comes, and another one at the same position, in a log that was made again or cut off, has another id.
# Without the last part the id names a position. Names of queues may have dots and digits, so an id is read from its
# end; an offset has at most 15 digits, and so is no last part.
#
# A log may have one message twice, at two offsets: a producer that does not know whether a message was appended
# appends it again, and Kafka's idempotent producer does so, too, where messages before it timed out (seen with
# librdkafka 2.x and three brokers). Both copies have the nonce and the same content, and so they are one write: the
# records of the database have each pair of the two once (idempotency_message_idx).

QUEUE_NAME: Final = re.compile(r"(?:kafka|redis|postgres):[A-Za-z0-9._-]{1,48}")
"""The name of a queue, which is also the name of its source of tokens."""
NONCE: Final = re.compile(r"[0-9a-f]{16}")
_NUMBER: Final = r"0|[1-9][0-9]{0,14}"
_ID: Final = re.compile(
    rf"(?P<queue>{QUEUE_NAME.pattern})\.(?P<partition>{_NUMBER})\.(?P<offset>{_NUMBER})"
    rf"(?:\.(?P<nonce>{NONCE.pattern}))?"
)


class MalformedWriteIdError(ValueError):
    """The text is no id of a write. The message has the form that one has."""


def new_nonce() -> str:
    """Choose a nonce for a message, so that its id comes up once."""
    return secrets.token_hex(8)


def joined(message: Message) -> bytes:
    """Join all that a message says: its key, value and headers. Two messages with other words have other bytes."""
    parts = [message.key, message.value or b""]
    for name, value in message.headers:
        parts += (name.encode(), value)
    # Lengths first: parts that meet elsewhere are other parts.
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return b"".join((lengths, *parts))


def content_of(message: Message) -> bytes:
    """Hash all that a message says: its key, value and headers."""
    return hashlib.blake2b(joined(message), digest_size=16).digest()


def content_at(position: Position, content: bytes) -> bytes:
    """Hash what a message says and where it is, which is what it is recognised by where it does not belong."""
    place = f"{position.partition}.{position.offset} ".encode()
    return hashlib.blake2b(place + content, digest_size=16).digest()


def hash_of(queue: str, received: Received) -> str:
    """Make the last part of the id of a message that has no nonce."""
    position = received.position
    place = f"{queue}.{position.partition}.{position.offset} {received.at:.3f} ".encode()
    return hashlib.blake2b(place + content_of(received.message), digest_size=8).hexdigest()


@dataclass(slots=True)
class MessageName:
    """What a message is recognised by. `id`: that of its write. `content`: the hash of what it says. Another message
    with the same last part of the id and the same content is a copy of it.
    """

    id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class WriteId:
    """An id, read. `nonce` None: it names a position only."""

    queue: str
    position: Position
    nonce: str | None = None

    def __str__(self) -> str:
        return id_at(self.queue, self.position, self.nonce)


def id_at(queue: str, position: Position, nonce: str | None) -> str:
    """Write the id of the write at a position."""
    place = f"{queue}.{position.partition}.{position.offset}"
    return place if nonce is None else f"{place}.{nonce}"


def parse_write_id(text: str) -> WriteId:
    """Read an id, with or without its last part. Raises MalformedWriteIdError."""
    # The queue's name is greedy: what follows is taken from the end.
    found = _ID.fullmatch(text)
    if found is None or int(found["offset"]) > MOST_OFFSET:
        raise MalformedWriteIdError(
            f"{text[:120]!r} is no id of a write: queue.partition.offset.nonce, as the answer 202 gave it"
        )
    return WriteId(found["queue"], Position(int(found["partition"]), int(found["offset"])), found["nonce"])


Method = Literal["PATCH", "PUT", "POST", "DELETE"]
METHODS: Final[dict[bytes, Method]] = {method.encode("ascii"): method for method in get_args(Method)}

METHOD: Final = "method"
QUERY: Final = "query"
PREFER: Final = "prefer"
ACCEPT: Final = "accept"
CONTENT_TYPE: Final = "content-type"
IDEMPOTENCY_KEY: Final = "idempotency-key"
FENCE_TOKEN: Final = "fence-token"  # noqa: S105 - the name of a header
CALLER: Final = "caller"
WRITE_NONCE: Final = "write-nonce"
KNOWN: Final = (METHOD, QUERY, PREFER, ACCEPT, CONTENT_TYPE, IDEMPOTENCY_KEY, FENCE_TOKEN, CALLER, WRITE_NONCE)
"""Names of headers, in the order in which they are written. They are read in any case."""
_OF_HTTP: Final = "x-fence-token"
OF_OTHERS: Final = ("x-", "trace", "baggage")
"""How the names of headers begin that have nothing to do with the write."""


class MalformedMessageError(ValueError):
    """The message is no write. The text names the header, or key, and what is wrong with it."""


@dataclass(slots=True)
class WriteMessage:
    """A write as a message carries it. `resource` is its name as it stands in the key; `body` None: it has none."""

    resource: str
    method: Method
    body: bytes | None
    query: bytes = b""
    prefer: bytes | None = None
    accept: bytes | None = None
    content_type: bytes | None = None
    idempotency_key: bytes | None = None
    token: Presented | None = None
    """The token of the lock's holder, with its seal if it has one; for tables whose tokens are not the queue's."""
    nonce: str | None = None
    others: Headers = ()
    """Headers of others, which stay with the message."""
    caller: bytes | None = None
    """Whose write it is, as a gateway has signed it (`sign`): nothing of it is proven."""

    @property
    def named(self) -> Resource:
        """The resource: its table and key. Raises MalformedMessageError."""
        try:
            return parse_resource(self.resource)
        except MalformedResourceError as error:
            raise MalformedMessageError(f"key: {error}") from error


def message_of(write: WriteMessage) -> Message:
    """Make the message of a write."""
    values = {
        METHOD: write.method.encode("ascii"),
        QUERY: write.query or None,
        PREFER: write.prefer,
        ACCEPT: write.accept,
        CONTENT_TYPE: write.content_type,
        IDEMPOTENCY_KEY: write.idempotency_key,
        FENCE_TOKEN: None if write.token is None else _spelled(write.token),
        CALLER: write.caller,
        WRITE_NONCE: None if write.nonce is None else write.nonce.encode("ascii"),
    }
    headers = tuple((name, value) for name, value in values.items() if value is not None)
    return Message(write.resource.encode(), write.body, (*headers, *write.others))


def _spelled(token: Presented) -> bytes:
    return (token.text if isinstance(token, SealedToken) else str(token)).encode("ascii")


def read_message(message: Message) -> WriteMessage:
    """Read what a message says. The body is not looked into, nor whether there is such a table. Raises
    MalformedMessageError.
    """
    given: dict[str, bytes] = {}
    others = []
    for name, value in message.headers:
        known = name if name in _KNOWN else name.lower()
        if known in _KNOWN:
            if known in given:
                raise MalformedMessageError(f"header {known}: it stands there twice")
            given[known] = value
        elif known == _OF_HTTP:
            raise MalformedMessageError(f"header {known}: the token of a message is in its header {FENCE_TOKEN}")
        elif known.startswith(OF_OTHERS):
            others.append((name, value))
        else:
            raise MalformedMessageError(
                f"header {name[:60]}: unknown. Known are {', '.join(KNOWN)}; those of others begin with"
                f" {', '.join(OF_OTHERS)}"
            )
    return WriteMessage(
        resource_of(message),
        _method(given),
        message.value,
        given.get(QUERY, b""),
        given.get(PREFER),
        given.get(ACCEPT),
        given.get(CONTENT_TYPE),
        given.get(IDEMPOTENCY_KEY),
        _token(given),
        _nonce(given),
        tuple(others),
        _caller(given),
    )


def resource_of(message: Message) -> str:
    """Read the resource's name from a message's key. Raises MalformedMessageError."""
    if not message.key:
        raise MalformedMessageError("key: there is none; it is the resource that is written, as orders/order-123")
    try:
        return message.key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"key: {message.key[:60]!r} is not UTF-8") from error


def nonce_of(message: Message) -> str | None:
    """Find a message's nonce; None also where what stands there is none. For the id of a message that is malformed."""
    for name, value in reversed(message.headers):  # a gateway has it last
        if name == WRITE_NONCE or name.lower() == WRITE_NONCE:
            text = value.decode("ascii", "replace")
            return text if NONCE.fullmatch(text) else None
    return None


_KNOWN: Final = frozenset(KNOWN)
_SIGNED: Final = re.compile(rb"[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{43}")


def _method(given: dict[str, bytes]) -> Method:
    value = given.get(METHOD)
    if value is None:
        raise MalformedMessageError(f"header {METHOD}: missing; it is {', '.join(METHODS.values())}")
    method = METHODS.get(value)
    if method is None:
        raise MalformedMessageError(f"header {METHOD}: {_shown(value)}: it is one of {', '.join(METHODS.values())}")
    return method


def _token(given: dict[str, bytes]) -> Presented | None:
    value = given.get(FENCE_TOKEN)
    if value is None:
        return None
    try:
        token = parse_presented(value)
    except MalformedTokenError as error:
        raise MalformedMessageError(f"header {FENCE_TOKEN}: {_shown(quotable(value))}: {error}") from error
    return replace(token, queued=True) if isinstance(token, SealedToken) else token


def _caller(given: dict[str, bytes]) -> bytes | None:
    value = given.get(CALLER)
    if value is not None and not _SIGNED.fullmatch(value):
        raise MalformedMessageError(f"header {CALLER}: it is no key, payload and signature with dots between")
    return value


def _nonce(given: dict[str, bytes]) -> str | None:
    value = given.get(WRITE_NONCE)
    if value is None:
        return None
    text = value.decode("ascii", "replace")
    if not NONCE.fullmatch(text):
        raise MalformedMessageError(f"header {WRITE_NONCE}: {_shown(value)}: it has 16 hexadecimal digits, 0-9 and a-f")
    return text


def _shown(value: bytes) -> str:
    return value[:60].decode("utf-8", "replace")


# Whose write a message carries: the header `caller`, which a gateway signs and a consumer verifies (decision 0044).
#
#     2026-07.eyJuIjoiand0Oi….q83v…
#     key id . payload . HMAC-SHA256 over both, the queue, and all else of the message
#
# The payload has the caller's name, role, claims and patterns of locks, and when it was signed. So who can put messages
# into a log, and has no key, can neither make up a caller, nor change a caller's message, nor put its header on another
# one. What it can do is to put the same message there again. That is a copy, and known by its record (`MessageName`),
# which stays until each copy is decided that came while records are kept (queue_looks.sql). One that came later is
# refused. So the header is the first one, and the others stand as they were signed, in their order and letters: with
# other bytes it would be no copy.
#
# The keys are those that seal tokens (fence/seal.py).

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
