"""Leases: what an acquire says, how it is described, what is answered, and the routes."""

import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import orjson
from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fencepost.server import wire
from fencepost.server.fence.problem_types import LEASE_LOST
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, parse_resource
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway import leases
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.http.answers import json_response
from fencepost.server.http.bodies import read_json, read_no_body
from fencepost.server.http.guard import hung_up, leaving, may_ask_again, refuse_if_over
from fencepost.server.http.headers import Headers, read_headers
from fencepost.server.http.openapi_answers import problems
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.postgres.leases import Granted, LeaseId, LeaseRow, LockRequest, LockRow, is_lease_number
from fencepost.server.postgres.query import QueryError

# Reading what the lease routes are sent, strictly: every error names what is wrong and where.

SECRET_HEADER: Final = b"x-lease-secret"
SHORTEST_SECRET: Final = 22  # characters: 128 bits in base64
LONGEST_SECRET: Final = 256
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
    values = [value for name, value in headers if name == SECRET_HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise _bad("X-Lease-Secret: a lease has one secret, and there are several headers")
    value = values[0]
    if not SHORTEST_SECRET <= len(value) <= LONGEST_SECRET or not all(0x21 <= byte <= 0x7E for byte in value):  # noqa: PLR2004 - ASCII
        raise _bad(
            f"X-Lease-Secret: a secret has {SHORTEST_SECRET} to {LONGEST_SECRET} visible ASCII characters, "
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
    headers = read_headers(request, "lease", resources=True)
    secret = read_secret(request.scope["headers"])
    body = await _object(request, headers, body_limit)
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


async def read_renew(request: Request, headers: Headers, body_limit: int, limits: LeaseLimits) -> int | None:
    """Read the body of a renewal: a new TTL, or nothing."""
    body = await _object(request, headers, body_limit, may_be_empty=True)
    _only(body, {"ttl_ms"})
    if "ttl_ms" not in body:
        return None
    return _integer(body, "ttl_ms", 0, 1, limits.ttl_ms, "FENCEPOST_MAX_TTL")


async def read_mint(request: Request, headers: Headers, body_limit: int, limits: LeaseLimits) -> int:
    """Read how many tokens to mint."""
    body = await _object(request, headers, body_limit, may_be_empty=True)
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


async def _object(request: Request, headers: Headers, limit: int, *, may_be_empty: bool = False) -> dict[str, Any]:
    if may_be_empty and headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return {}
    _, body = await read_json(headers, request.receive, limit)
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


# How OpenAPI describes the routes of leases and locks: what each takes and answers, as arguments of its route.

# The endpoints take the bare request, and document their parameters here: FastAPI's reading of one header and one path
# parameter would cost as much as everything else that the gateway does for a lease.
_SECRET: Final[dict[str, Any]] = {
    "name": "X-Lease-Secret",
    "in": "header",
    "description": "The lease's secret: 22 to 256 visible ASCII characters with 128 random bits or more.",
    "schema": {"type": "string", "minLength": 22, "maxLength": 256, "pattern": "^[!-~]*$"},
}
_ID: Final[dict[str, Any]] = {
    "name": "lease_id",
    "in": "path",
    "required": True,
    "description": "The lease's id.",
    "schema": {"type": "string"},
    "example": "41",
}
_REQUIRED: Final = {**_SECRET, "required": True}
_LISTING: Final[list[dict[str, Any]]] = [
    {
        "name": "source",
        "in": "query",
        "description": "The token source whose locks to list; builtin without it.",
        "schema": {"type": "string"},
    },
    {"name": "name", "in": "query", "description": "Only this lock.", "schema": {"type": "string"}},
    {"name": "after", "in": "query", "description": "Only names after this one.", "schema": {"type": "string"}},
    {
        "name": "limit",
        "in": "query",
        "description": "At most so many.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
    },
]

_BAD = (400, "The body or the secret cannot be read.")
_NO_BODY = ((413, "The body is too large."), (415, "The body is not JSON."))
_LOST = (410, "The lease is lost, unknown, or another client's.")
_AWAY = (503, "The database or the lock service cannot be asked, or whether it was done is not known.")
_FAILED = (502, "The lock service answered, and would not do it.")


def _takes(
    *parameters: dict[str, Any], body: Any = None, example: dict[str, object] | None = None, required: bool = False
) -> dict[str, Any]:
    taken: dict[str, Any] = {"parameters": list(parameters)}
    if body is not None:
        schema = {**TypeAdapter(body).json_schema(), "additionalProperties": False}
        content = {"application/json": {"schema": schema, "example": example}}
        taken["requestBody"] = {"required": required, "content": content}
    return taken


ACQUIRE: Final[dict[str, Any]] = {
    "status_code": 201,
    "response_model": wire.LeaseAnswer,
    "summary": "Acquire a lock, or several, with a lease and its tokens",
    "openapi_extra": _takes(
        _SECRET,
        body=wire.LeaseRequest,
        example={"lock": "accounts/account-123", "owner": "worker-a", "ttl_ms": 30000},
        required=True,
    ),
    "responses": problems(
        _BAD,
        (403, "A claimed table is not protected."),
        (404, "A claimed table does not exist."),
        (409, "A claimed resource takes the tokens of another source."),
        *_NO_BODY,
        (423, "Another client holds a lock, or has been waiting for it longer."),
        _FAILED,
        _AWAY,
    )
    | {200: {"model": wire.LeaseAnswer, "description": "The same secret again: the same lease."}},
}
WITHDRAW: Final[dict[str, Any]] = {
    "status_code": 204,
    "response_class": Response,
    "summary": "Withdraw an acquire",
    "openapi_extra": _takes(_REQUIRED),
    "responses": problems(_BAD, _FAILED, (503, "A request with this secret is under way, or the database is away.")),
}
LOOK: Final[dict[str, Any]] = {
    "response_model": wire.LeaseState,
    "summary": "Look at a lease",
    "openapi_extra": _takes(_ID),
    "responses": problems((400, "The request has parameters or headers that this route does not take."), _LOST, _AWAY),
}
RENEW: Final[dict[str, Any]] = {
    "response_model": wire.LeaseState,
    "summary": "Keep a lease alive",
    "openapi_extra": _takes(_ID, _REQUIRED, body=wire.RenewRequest, example={"ttl_ms": 30000}),
    "responses": problems(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
}
MINT: Final[dict[str, Any]] = {
    "response_model": wire.MintAnswer,
    "summary": "Mint more tokens under a lease",
    "openapi_extra": _takes(_ID, _REQUIRED, body=wire.MintRequest, example={"count": 10}),
    "responses": problems(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
}
RELEASE: Final[dict[str, Any]] = {
    "status_code": 204,
    "response_class": Response,
    "summary": "Release a lease",
    "openapi_extra": _takes(_ID, _REQUIRED),
    "responses": problems(_BAD, (410, "The lease is held, and the secret is not its holder's."), _FAILED, _AWAY),
}
LIST: Final[dict[str, Any]] = {
    "response_model": list[wire.LockAnswer],
    "summary": "Who holds locks, and who waits",
    "openapi_extra": _takes(*_LISTING),
    "responses": problems((400, "The query or a header cannot be read."), _AWAY),
}


# What the routes of leases and locks answer, as members of JSON bodies.


def grant_body(granted: Granted, secret: str) -> dict[str, object]:
    """Give wire.LeaseAnswer."""
    lease = granted.lease
    return {
        "lease_id": lease.id,
        "source": lease.id.source,
        "secret": secret,
        "lock": _one_name(lease.names),
        "locks": lease.names,
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        **_tokens(lease),
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.remaining_ms,
        "waited_ms": granted.waited_ms,
        "claims": [
            {
                "resource": claim.resource,
                "mark": str(claim.mark),
                "row": orjson.Fragment(claim.rows[0]) if claim.rows else None,
            }
            for claim in granted.claims
        ],
    }


def mint_body(lease: LeaseRow) -> dict[str, object]:
    """Give wire.MintAnswer."""
    return {"lease_id": lease.id, **_tokens(lease), "expires_at": lease.expires_at}


def _tokens(lease: LeaseRow) -> dict[str, object]:
    """Give tokens, and with their seals beside the numbers, which clients go on reading as numbers."""
    tokens = [str(token) for token in lease.tokens]
    sealed = {"sealed_token": lease.sealed[0], "sealed_tokens": lease.sealed} if lease.sealed else {}
    return {"token": tokens[0], "tokens": tokens, **sealed}


def state_body(lease: LeaseRow) -> wire.LeaseState:
    """Give the state of a live lease."""
    return {
        "lease_id": lease.id,
        "source": lease.id.source,
        "lock": _one_name(lease.names),
        "locks": list(lease.names),
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.remaining_ms,
        "claims": list(lease.claims),
        "writes": list(lease.writes),
    }


def lock_body(source: str, state: LockRow) -> dict[str, object]:
    """Give wire.LockAnswer."""
    return {
        "name": state.name,
        "source": source,
        "held": state.lease_id is not None,
        "lease_id": None if state.lease_id is None else LeaseId(source, state.lease_id),
        "owner": state.owner,
        "granted_at": state.granted_at,
        "expires_at": state.expires_at,
        "remaining_ms": state.remaining_ms,
        "waiters": orjson.Fragment(state.waiters),
    }


def _one_name(names: tuple[str, ...]) -> str | None:
    return names[0] if len(names) == 1 else None


# The routes of leases and locks: acquire, look, renew, mint, release, list.


def lease_routes(gateway: Callable[[Scope], Gateway], max_body_bytes: int) -> APIRouter:
    """Give /v1/leases and /v1/locks."""
    router, routes = APIRouter(tags=["leases"]), LeaseRoutes(gateway, max_body_bytes)
    one = "/v1/leases/{lease_id}"
    router.add_api_route("/v1/leases", routes.post_lease, methods=["POST"], **ACQUIRE)
    router.add_api_route("/v1/leases", routes.delete_acquire, methods=["DELETE"], **WITHDRAW)
    router.add_api_route(one, routes.get_lease, methods=["GET"], **LOOK)
    router.add_api_route(f"{one}/renew", routes.post_renew, methods=["POST"], **RENEW)
    router.add_api_route(f"{one}/tokens", routes.post_tokens, methods=["POST"], **MINT)
    router.add_api_route(one, routes.delete_lease, methods=["DELETE"], **RELEASE)
    router.add_api_route("/v1/locks", routes.get_locks, methods=["GET"], **LIST)
    return router


class LeaseRoutes:
    """The endpoints. Their docstrings are what /docs shows."""

    def __init__(self, gateway: Callable[[Scope], Gateway], max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def post_lease(self, request: Request) -> Response:
        """Lock all of `locks`, or nothing. With `wait_ms` wait in the queue, first come first served.

        `claim` raises the marks of resources in the same transaction: the holder before is fenced from the moment
        of the grant, and `claims` has the rows, which no older holder can change any more.
        """
        scope, gateway = request.scope, self._gateway(request.scope)
        wanted = await read_acquire(request, self._max_body_bytes, gateway.locks.limits)
        async with leaving(scope) if wanted.wait_ms else nullcontext(hung_up(scope)) as gone:
            outcome = await leases.acquire_lease(gateway, wanted, gone, partial(may_ask_again, scope))
            if gone.done():
                refuse_if_over(scope, gone, gateway.report_if_forbidden)
        if isinstance(outcome, Problem):
            return problem_response(outcome)
        status = 201 if outcome.verdict == "granted" else 200
        headers = {"Cache-Control": "no-store", "Location": f"/v1/leases/{outcome.lease.id}"}
        return Response(orjson.dumps(grant_body(outcome, wanted.secret)), status, headers, "application/json")

    async def delete_acquire(self, request: Request) -> Response:
        """Withdraw an acquire with a secret of one's own, whatever has become of it: its lease is released, its place
        in the queue is free, and a request that is still under way is granted nothing. The secret is used up.
        """
        headers = read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        await read_no_body(headers, request.receive, self._max_body_bytes)
        problem = await leases.withdraw(self._gateway(request.scope), secret)
        return _nothing() if problem is None else problem_response(problem)

    async def get_lease(self, request: Request) -> Response:
        """Show the state of a live lease. It takes no secret and shows none."""
        gateway = self._gateway(request.scope)
        read_headers(request, "look")
        found = await leases.inspect(gateway, read_lease_id(request.path_params["lease_id"]))
        return problem_response(found) if isinstance(found, Problem) else json_response(state_body(found))

    async def post_renew(self, request: Request) -> Response:
        """Let the lease live for its TTL from now on. A lease whose time has run out cannot be renewed."""
        gateway, headers = self._gateway(request.scope), read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        ttl_ms = await read_renew(request, headers, self._max_body_bytes, gateway.locks.limits)
        found = await leases.renew(gateway, read_lease_id(request.path_params["lease_id"]), secret, ttl_ms)
        return problem_response(found) if isinstance(found, Problem) else json_response(state_body(found))

    async def post_tokens(self, request: Request) -> Response:
        """Draw fresh tokens, each good for one write of a resource under the rule strict."""
        gateway, headers = self._gateway(request.scope), read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        count = await read_mint(request, headers, self._max_body_bytes, gateway.locks.limits)
        found = await leases.mint(gateway, read_lease_id(request.path_params["lease_id"]), secret, count)
        return problem_response(found) if isinstance(found, Problem) else json_response(mint_body(found))

    async def delete_lease(self, request: Request) -> Response:
        """Give the locks back and wake the first waiter. Harmless when the lease is over already."""
        headers = read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        await read_no_body(headers, request.receive, self._max_body_bytes)
        try:
            number = read_lease_id(request.path_params["lease_id"])
        except RequestError:  # no lease of such an id can be held
            return _nothing()
        problem = await leases.release(self._gateway(request.scope), number, secret)
        return _nothing() if problem is None else problem_response(problem)

    async def get_locks(self, request: Request) -> Response:
        """List locks that are held or waited for, by name. Idle locks do not appear: nothing is kept of them."""
        read_headers(request, "look", query=True)
        source, name, after, limit = read_listing(request.scope["query_string"])
        names = None if name is None else [name]
        found = await leases.locks(self._gateway(request.scope), source, names, after, limit)
        if isinstance(found, Problem):
            return problem_response(found)
        return json_response([lock_body(source, each) for each in found])


def _nothing() -> Response:
    return Response(status_code=204, headers={"Cache-Control": "no-store"})
