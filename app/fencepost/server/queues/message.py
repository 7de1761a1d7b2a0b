"""What a message says about its write: its key and its headers, read and made.

The key of a message is the resource's canonical name, the value its JSON body. Headers that begin with `x-`, `trace` or
`baggage` are other people's, and stay with the message. Any other name that is not known is refused: it may be a
misspelled one that was to change what the write does.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from fencepost.server.fence.resource import MalformedResourceError, Resource, parse_resource
from fencepost.server.fence.seal import Presented, SealedToken, parse_presented, quotable
from fencepost.server.fence.token import MalformedTokenError
from fencepost.server.queues.log import Headers, Message
from fencepost.server.queues.write_id import NONCE

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
    """Whose write it is, as a gateway has signed it (signing.py): nothing of it is proven."""

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
