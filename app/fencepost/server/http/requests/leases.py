"""Reading what the lease routes are sent, strictly: every error names what is wrong and where."""

import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request

from fencepost.server.fence.problem_types import LEASE_LOST
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, parse_resource
from fencepost.server.fence.token import BUILTIN
from fencepost.server.http.problems.response import RequestError
from fencepost.server.http.requests.bodies import read_json
from fencepost.server.http.requests.headers import by_name
from fencepost.server.http.requests.query import query_pairs
from fencepost.server.http.requests.system import read_headers
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.postgres.leases import LeaseId, LockRequest, is_lease_number
from fencepost.server.postgres.query import QueryError

HEADER: Final = b"x-lease-secret"
SHORTEST: Final = 22  # characters: 128 bits in base64
LONGEST: Final = 256
MOST_LOCKS: Final = 32
MOST_CLAIMS: Final = 100
MOST_WRITES: Final = 32
LONGEST_WRITES: Final = 1024  # bytes, of all together: they stand in each token
LONGEST_NAME: Final = 512  # bytes
LONGEST_OWNER: Final = 256  # characters
DEFAULT_TTL_MS: Final = 30_000
MOST_MS: Final = 2_000_000_000  # PostgreSQL's integer holds it
_NOT_PLAIN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
MOST_LISTED: Final = 1000
ID: Final = re.compile("[1-9][0-9]{0,18}")
LIMIT: Final = re.compile("0{0,16}[1-9][0-9]{0,3}")

SOURCE: Final = re.compile("[a-z][a-z0-9_]{0,31}")
LEASE_OF_SOURCE: Final = re.compile("([a-z][a-z0-9_]{0,31})-([1-9][0-9]{0,18})")

_ACQUIRE: Final = frozenset(
    {"lock", "locks", "owner", "ttl_ms", "wait_ms", "tokens", "claim", "writes", "keep_place", "source"}
)


def _bad(detail: str, hint: str | None = None) -> RequestError:
    return RequestError(bad_request(detail, hint))


def read_secret(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read X-Lease-Secret; None when it is not there. Its value is never repeated in an error."""
    values = [value for name, value in headers if name == HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise _bad("X-Lease-Secret: a lease has one secret, and there are several headers")
    value = values[0]
    if not SHORTEST <= len(value) <= LONGEST or not all(0x21 <= byte <= 0x7E for byte in value):  # noqa: PLR2004 - ASCII
        raise _bad(
            f"X-Lease-Secret: a secret has {SHORTEST} to {LONGEST} visible ASCII characters, "
            "and 128 random bits or more in them"
        )
    return value.decode("ascii")


def require_secret(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Read X-Lease-Secret, which must be there."""
    secret = read_secret(headers)
    if secret is None:
        raise _bad("X-Lease-Secret: missing; it came with the lease, or was chosen by the client that acquired it")
    return secret


def read_lease_id(text: str) -> LeaseId:
    """Read the id in the path. What cannot be an id is the id of no lease: 410."""
    source, number = BUILTIN, text
    if (named := LEASE_OF_SOURCE.fullmatch(text)) is not None and named[1] != BUILTIN:
        source, number = named[1], named[2]
    if not ID.fullmatch(number) or not is_lease_number(int(number)):
        raise RequestError(Problem(LEASE_LOST, f"There is no lease {text[:40]}.", extra={"lease_id": text[:40]}))
    return LeaseId(source, int(number))


async def read_acquire(request: Request, body_limit: int, limits: LeaseLimits) -> LockRequest:
    """Read POST /v1/leases."""
    read_headers(request, "lease", resources=True)
    secret = read_secret(request.scope["headers"])
    body = await _object(request, body_limit)
    _only(body, _ACQUIRE)
    peer = request.scope.get("client")
    return LockRequest(
        names=_locks(body),
        secret=secret if secret is not None else secrets.token_urlsafe(32),
        chosen=secret is not None,
        owner=_owner(body.get("owner", peer[0] if peer else "unknown")),
        owner_given="owner" in body,
        ttl_ms=_integer(body, "ttl_ms", DEFAULT_TTL_MS, 1, limits.ttl_ms, "FENCEPOST_MAX_TTL"),
        # A waiting client is answered sooner than it asked for, and may ask again.
        wait_ms=min(_integer(body, "wait_ms", 0, 0, MOST_MS), limits.wait_ms),
        tokens=_integer(body, "tokens", 1, 1, limits.tokens, "FENCEPOST_MAX_TOKENS"),
        claims=_claims(body.get("claim", [])),
        keep_place=_keep_place(body, chosen=secret is not None),
        source=_source(body.get("source", BUILTIN)),
        writes=_writes(body.get("writes", [])),
    )


async def read_renew(request: Request, body_limit: int, limits: LeaseLimits) -> int | None:
    """Read the body of a renewal: a new TTL, or nothing."""
    body = await _object(request, body_limit, may_be_empty=True)
    _only(body, {"ttl_ms"})
    if "ttl_ms" not in body:
        return None
    return _integer(body, "ttl_ms", 0, 1, limits.ttl_ms, "FENCEPOST_MAX_TTL")


async def read_mint(request: Request, body_limit: int, limits: LeaseLimits) -> int:
    """Read how many tokens to mint."""
    body = await _object(request, body_limit, may_be_empty=True)
    _only(body, {"count"})
    return _integer(body, "count", 1, 1, limits.tokens, "FENCEPOST_MAX_TOKENS")


def read_listing(raw: bytes) -> tuple[str, str | None, str | None, int]:
    """Read ?source=, ?name=, ?after= and ?limit= of GET /v1/locks."""
    try:
        pairs = query_pairs(raw)
    except QueryError as error:
        raise _bad(str(error)) from error
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in ("source", "name", "after", "limit") or name in given:
            raise _bad(f"query: {name}: this takes source, name, after and limit, each once")
        given[name] = value
    limit = given.get("limit", str(MOST_LISTED))
    if not LIMIT.fullmatch(limit) or int(limit) > MOST_LISTED:
        raise _bad(f"query: limit: {limit[:20]!r} is not a number from 1 to {MOST_LISTED}")
    return given.get("source", BUILTIN), given.get("name"), given.get("after"), int(limit)


async def _object(request: Request, limit: int, *, may_be_empty: bool = False) -> dict[str, Any]:
    if (
        may_be_empty
        and request.headers.get("content-length", "0") == "0"
        and "transfer-encoding" not in request.headers
    ):
        return {}
    _, body = await read_json(by_name(request.scope["headers"]), request.receive, limit)
    if not isinstance(body, dict):
        raise _bad("body: a JSON object is expected")
    return body


def _only(body: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := sorted(body.keys() - set(known)):
        raise _bad(f"body: {', '.join(unknown)}: unknown; this takes {', '.join(sorted(known))}")


def _locks(body: Mapping[str, Any]) -> tuple[str, ...]:
    if ("lock" in body) == ("locks" in body):
        raise _bad('body: name what to lock: {"lock": "orders/order-123"}, or several in "locks"')
    names = [body["lock"]] if "lock" in body else body["locks"]
    if not isinstance(names, list) or not 1 <= len(names) <= MOST_LOCKS:
        raise _bad(f"body: locks: an array of 1 to {MOST_LOCKS} names is expected")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= LONGEST_NAME or not is_plain(name):
            raise _bad(
                f"body: lock: a name has 1 to {LONGEST_NAME} bytes without control characters, and {name!r:.60} has not"
            )
    if len(set(names)) < len(names):
        raise _bad("body: locks: a name stands there twice")
    return tuple(names)


def _source(value: object) -> str:
    if not isinstance(value, str) or not SOURCE.fullmatch(value):
        raise _bad(f"body: source: {value!r:.60} is not the name of a token source, such as {BUILTIN} or etcd")
    return value


def _owner(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_OWNER or not is_plain(value):
        raise _bad(
            f"body: owner: who holds the lock, for people: 1 to {LONGEST_OWNER} characters, no control characters"
        )
    return value


def _integer(
    body: Mapping[str, Any], name: str, default: int, least: int, most: int, setting: str | None = None
) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        hint = f"{setting} sets the most." if setting else None
        raise _bad(f"body: {name}: {value!r:.40} is not an integer from {least} to {most}", hint)
    return value


def _keep_place(body: Mapping[str, Any], *, chosen: bool) -> bool:
    value = body.get("keep_place", False)
    if not isinstance(value, bool):
        raise _bad("body: keep_place: true or false is expected")
    if value and not chosen:
        raise _bad("body: keep_place: a place is kept for a client that has its X-Lease-Secret, and there is none")
    return value


def is_plain(text: str) -> bool:
    """Whether a text has no control characters, line ends or lone surrogates: it will stand in logs."""
    return not any(unicodedata.category(character) in _NOT_PLAIN for character in text)


def _claims(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_CLAIMS:
        raise _bad(f"body: claim: an array of at most {MOST_CLAIMS} resources is expected")
    for text in value:
        if not isinstance(text, str):
            raise _bad("body: claim: resources are strings like orders/order-123")
        try:
            parse_resource(text)
        except MalformedResourceError as error:
            raise _bad(f"body: claim: {error}") from error
    if len(set(value)) < len(value):
        raise _bad("body: claim: a resource stands there twice")
    return tuple(value)


def _writes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_WRITES:
        raise _bad(f"body: writes: an array of at most {MOST_WRITES} resources is expected, such as orders/*")
    for text in value:
        if not isinstance(text, str) or not is_plain(text):
            raise _bad("body: writes: resources are strings like orders/order-123 or orders/*")
    if len(set(value)) < len(value):
        raise _bad("body: writes: a resource stands there twice")
    if sum(len(text.encode()) for text in value) > LONGEST_WRITES:
        raise _bad(
            f"body: writes: they have more than {LONGEST_WRITES} bytes together, and stand in each sealed token",
            "orders/* names all rows of a table.",
        )
    return tuple(value)
