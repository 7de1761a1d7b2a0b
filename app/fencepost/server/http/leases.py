"""Leases: what an acquire and the other requests say, what is answered, and the routes."""

import re
import secrets
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Annotated, Any, Final, NotRequired

import orjson
from pydantic import Field, PlainValidator, SkipValidation, Strict, ValidationInfo, WithJsonSchema, model_validator
from starlette.responses import Response
from typing_extensions import TypedDict

from fencepost.server.fence.problem_types import LEASE_LOST
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, parse_resource
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway import leases
from fencepost.server.gateway.next_rows import Next, take_next
from fencepost.server.gateway.takers import LOOK_MOST, TakenRow
from fencepost.server.http.answers import ClaimAnswer, declared, json_response
from fencepost.server.http.guard import hung_up, leaving, may_ask_again, refuse_if_over
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import only, parse_order, parse_query
from fencepost.server.http.routes import Answered, Asked, NoQuery, Part, Route, Says, Taken, UnfitError
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.postgres.leases import Granted, LeaseId, LeaseRow, LockRequest, LockRow, is_lease_number
from fencepost.server.postgres.query import Filter, OrderTerm, QueryError

# What the bodies and queries of these routes have. Every refusal names what is wrong and where.

MOST_LOCKS: Final = 32
MOST_CLAIMS: Final = 100
MOST_WRITES: Final = 32
LONGEST_WRITES: Final = 1024  # bytes, of all together: they stand in each token
LONGEST_NAME: Final = 512  # bytes
LONGEST_OWNER: Final = 256  # characters
LONGEST_WHERE: Final = 4096  # characters
DEFAULT_TTL_MS: Final = 30_000
MOST_MS: Final = 2_000_000_000  # PostgreSQL's integer holds it
PLAIN: Final = "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]*$"
"""A text without control characters and line ends: it will stand in logs."""
MOST_LISTED: Final = 1000
ID: Final = re.compile("[1-9][0-9]{0,18}")
LIMIT: Final = re.compile("0{0,16}[1-9][0-9]{0,3}")
LEASE_OF_SOURCE: Final = re.compile("([a-z][a-z0-9_]{0,31})-([1-9][0-9]{0,18})")


def _limit(value: object) -> int:
    if not isinstance(value, str) or not LIMIT.fullmatch(value) or int(value) > MOST_LISTED:
        raise UnfitError(f"{value!r:.22} is not a number from 1 to {MOST_LISTED}")
    return int(value)


def _require_within(member: str, value: object, least: int, most: int, setting: str | None = None) -> None:
    """Refuse what is no integer, or out of bounds; `setting` sets the upper one."""
    if type(value) is not int or not least <= value <= most:
        hint = f"{setting} sets the most." if setting else None
        raise UnfitError(f"{member}: {value!r:.40} is not an integer from {least} to {most}", hint)


def _limits(info: ValidationInfo) -> LeaseLimits:
    gateway: Any = info.context
    limits: LeaseLimits = gateway.locks.limits
    return limits


def is_plain(text: str) -> bool:
    """Whether a text has no control characters or line ends: it will stand in logs."""
    return re.fullmatch(PLAIN, text) is not None


_OF_A_NAME: Final = f"a name has 1 to {LONGEST_NAME} bytes without control characters, and {{value}} has not"
Plain = Annotated[str, Field(min_length=1, pattern=PLAIN), WithJsonSchema({"type": "string", "minLength": 1})]
Source = Annotated[
    str,
    Field(pattern="^[a-z][a-z0-9_]{0,31}$"),
    Says(f"{{value}} is not the name of a token source, such as {BUILTIN} or etcd"),
]
Limit = Annotated[
    int, PlainValidator(_limit), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_LISTED})
]
"""How many members a page of a list has at most."""
Whole = Annotated[int, SkipValidation, WithJsonSchema({"type": "integer", "minimum": 1})]  # _require_within looks


_OF_NEXT: Final = ("limit", "order", "table", "where")


def _next(value: object) -> Next:
    """Read `next`. Raises UnfitError."""
    if not isinstance(value, dict) or not isinstance(value.get("table"), str):
        raise UnfitError('an object with the name of a table is expected: {"table": "jobs", "where": "status=eq.new"}')
    if unknown := sorted(value.keys() - {*_OF_NEXT}):
        raise UnfitError(f"{', '.join(unknown)[:100]}: unknown; it takes {', '.join(_OF_NEXT)}")
    where, order, limit = value.get("where", ""), value.get("order", ""), value.get("limit", 1)
    if not isinstance(where, str) or not isinstance(order, str):
        raise UnfitError("where and order are texts, as in the query of GET /v1/data/jobs?status=eq.new&order=id")
    if max(len(where), len(order)) > LONGEST_WHERE:
        raise UnfitError(f"where and order have at most {LONGEST_WHERE} characters each: they are kept with their plan")
    _require_within("limit", limit, 1, LOOK_MOST)
    try:
        return Next(value["table"], *_parsed(where, order), limit)
    except QueryError as error:
        raise UnfitError(str(error)) from error


@lru_cache(maxsize=256)
def _parsed(where: str, order: str) -> tuple[tuple[Filter, ...], tuple[OrderTerm, ...]]:
    """Parse what workers ask again and again. Raises QueryError."""
    return only(parse_query(where.encode()), "filters").filters, parse_order(order) if order else ()


NextRow = Annotated[
    Next | None,
    PlainValidator(_next),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["table"],
            "properties": {
                "table": {"type": "string"},
                "where": {"type": "string", "description": "Filters, as in the query of a GET of rows."},
                "order": {"type": "string", "description": "As in the query of a GET of rows; by the key without it."},
                "limit": {"type": "integer", "minimum": 1, "maximum": LOOK_MOST, "default": 1},
            },
        }
    ),
]


class LeaseRequest(Taken):
    """What to acquire: one lock, or several of which all or none are granted; or, with `next`, the locks of the first
    rows of a table that nobody holds. Times in milliseconds.

    `writes`: what the sealed tokens may be used for beside what locks and claims name: resources, or `orders/*`.
    """

    lock: Annotated[Plain, Says(_OF_A_NAME)] = ""
    locks: Annotated[
        tuple[Plain, ...],
        Field(min_length=1, max_length=MOST_LOCKS),
        Says(f"1 to {MOST_LOCKS} names in an array, each with 1 to {LONGEST_NAME} bytes without control characters"),
    ] = ()
    owner: Annotated[
        Plain,
        Field(max_length=LONGEST_OWNER),
        Says(f"who holds the lock, for people: 1 to {LONGEST_OWNER} characters, no control characters"),
        WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_OWNER}),
    ] = ""
    ttl_ms: Whole = DEFAULT_TTL_MS
    wait_ms: Annotated[Whole, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MOST_MS})] = 0
    tokens: Whole = 1
    claim: Annotated[
        tuple[str, ...],
        Field(max_length=MOST_CLAIMS),
        Says(f"resources are strings like orders/order-123, in an array of at most {MOST_CLAIMS}"),
    ] = ()
    writes: Annotated[
        tuple[Plain, ...],
        Field(max_length=MOST_WRITES),
        Says(f"resources are strings like orders/order-123 or orders/*, in an array of at most {MOST_WRITES}"),
    ] = ()
    keep_place: Annotated[bool, Strict(), Says("true or false is expected")] = False
    source: Source = BUILTIN
    next: NextRow = None

    @property
    def names(self) -> tuple[str, ...]:
        """The locks."""
        return self.locks or (self.lock,)

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> "LeaseRequest":
        if len({"lock", "locks", "next"} & self.model_fields_set) != 1:
            raise UnfitError(
                'name what to lock: {"lock": "orders/order-123"}, or several in "locks", or {"next": {"table": "jobs"}}'
            )
        _require_within("ttl_ms", self.ttl_ms, 1, _limits(info).ttl_ms, "FENCEPOST_MAX_TTL")
        _require_within("wait_ms", self.wait_ms, 0, MOST_MS)
        _require_within("tokens", self.tokens, 1, _limits(info).tokens, "FENCEPOST_MAX_TOKENS")
        for name in () if self.next else self.names:
            if len(name.encode()) > LONGEST_NAME:
                raise UnfitError(f"lock: {_OF_A_NAME.format(value=f'{name!r:.60}')}")
        try:
            for resource in self.claim:
                parse_resource(resource)
        except MalformedResourceError as error:
            raise UnfitError(f"claim: {error}") from error
        for member, what, values in (
            *(("locks", "name", self.locks), ("claim", "resource", self.claim)),
            ("writes", "resource", self.writes),
        ):
            if len(set(values)) < len(values):
                raise UnfitError(f"{member}: a {what} stands there twice")
        if sum(len(text.encode()) for text in self.writes) > LONGEST_WRITES:
            raise UnfitError(
                f"writes: they have more than {LONGEST_WRITES} bytes together, and stand in each sealed token",
                "orders/* names all rows of a table.",
            )
        if self.next is not None and (other := {"claim", "keep_place", "source"} & self.model_fields_set):
            raise UnfitError(f"{min(other)}: not with next, which claims its row, under the source {BUILTIN}")
        return self


class RenewRequest(Taken):
    """How long the lease shall live from now on; without it, as long as before."""

    ttl_ms: Whole = 0

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> "RenewRequest":
        if self.model_fields_set:
            _require_within("ttl_ms", self.ttl_ms, 1, _limits(info).ttl_ms, "FENCEPOST_MAX_TTL")
        return self


class MintRequest(Taken):
    """How many tokens to draw; without it, one."""

    count: Whole = 1

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> "MintRequest":
        _require_within("count", self.count, 1, _limits(info).tokens, "FENCEPOST_MAX_TOKENS")
        return self


class LockQuery(Taken):
    """Which locks to list."""

    source: Source = Field(BUILTIN, description="The token source whose locks to list; builtin without it.")
    name: str | None = Field(None, description="Only this lock.")
    after: str | None = Field(None, description="Only names after this one.")
    limit: Limit = Field(MOST_LISTED, description="At most so many.")


def read_lease_id(text: str) -> LeaseId:
    """Read the id in the path. What cannot be an id is the id of no lease: 410."""
    source, number = BUILTIN, text
    if (named := LEASE_OF_SOURCE.fullmatch(text)) is not None and named[1] != BUILTIN:
        source, number = named[1], named[2]
    if not ID.fullmatch(number) or not is_lease_number(int(number)):
        raise RequestError(Problem(LEASE_LOST, f"There is no lease {text[:40]}.", extra={"lease_id": text[:40]}))
    return LeaseId(source, int(number))


# What the routes answer.


@declared
class LeaseAnswer(TypedDict):
    """A granted lease.

    The grant is not earlier than the request's start plus `waited_ms`; `remaining_ms` is what the database's clock left
    of the lease then, without the time that the claims took. `sealed_token` and `sealed_tokens` are the tokens with
    their seals, where the gateway has keys. `row` and `attempt` are of a lease of the next row of a table: the row, as
    its claim found it, and how often the row was taken, with this time.
    """

    lease_id: str
    source: str
    secret: str
    lock: str | None
    locks: list[str]
    owner: str
    ttl_ms: int
    token: str
    tokens: list[str]
    sealed_token: NotRequired[str]
    sealed_tokens: NotRequired[list[str]]
    granted_at: str
    expires_at: str
    remaining_ms: int
    waited_ms: int
    claims: list[ClaimAnswer]
    row: NotRequired[dict[str, Any] | None]
    attempt: NotRequired[int]


@declared
class LeasesAnswer(TypedDict):
    """The leases of several rows, which a `limit` above 1 asked for: as many as there were, one at least."""

    leases: list[LeaseAnswer]


@declared
class LeaseState(TypedDict):
    """A live lease, without its tokens: they are its holder's."""

    lease_id: str
    source: str
    lock: str | None
    locks: list[str]
    owner: str
    ttl_ms: int
    granted_at: str
    expires_at: str
    remaining_ms: int
    claims: list[str]
    writes: list[str]


@declared
class MintAnswer(TypedDict):
    """Fresh tokens, in rising order; `token` is the first. With their seals where the gateway has keys."""

    lease_id: str
    token: str
    tokens: list[str]
    sealed_token: NotRequired[str]
    sealed_tokens: NotRequired[list[str]]
    expires_at: str


@declared
class WaiterAnswer(TypedDict):
    """A waiter in a lock's queue."""

    owner: str
    since: str
    until: str


@declared
class LockAnswer(TypedDict):
    """A lock that is held or waited for. The lease's members are null when it is free."""

    name: str
    source: str
    held: bool
    lease_id: str | None
    owner: str | None
    granted_at: str | None
    expires_at: str | None
    remaining_ms: int | None
    waiters: list[WaiterAnswer]


def grant_body(granted: Granted, secret: str) -> dict[str, object]:
    """Give LeaseAnswer."""
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
        **_next_row(granted),
    }


def _next_row(granted: Granted) -> dict[str, object]:
    """Give what is said of the lease of a next row beside that; of a repeated one the row may have been deleted."""
    if granted.lease.attempt is None:
        return {}
    rows = granted.claims[0].rows
    return {"row": orjson.Fragment(rows[0]) if rows else None, "attempt": granted.lease.attempt}


def mint_body(lease: LeaseRow) -> dict[str, object]:
    """Give MintAnswer."""
    return {"lease_id": lease.id, **_tokens(lease), "expires_at": lease.expires_at}


def _tokens(lease: LeaseRow) -> dict[str, object]:
    """Give tokens, and with their seals beside the numbers, which clients go on reading as numbers."""
    tokens = [str(token) for token in lease.tokens]
    sealed = {"sealed_token": lease.sealed[0], "sealed_tokens": lease.sealed} if lease.sealed else {}
    return {"token": tokens[0], "tokens": tokens, **sealed}


def state_body(lease: LeaseRow) -> LeaseState:
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
    """Give LockAnswer."""
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


# The routes.


async def post_lease(asked: Asked[NoQuery, LeaseRequest]) -> Response:
    """Lock all of `locks`, or nothing. With `wait_ms` wait in the queue, first come first served.

    `next` locks the first row of a table that matches and that nobody holds, claims it, and answers with the row: the
    next job. Rows that others are taking are passed by. With a `limit` above 1 several, each with a lease of its own.

    `claim` raises the marks of resources in the same transaction: the holder before is fenced from the moment
    of the grant, and `claims` has the rows, which no older holder can change any more.
    """
    scope, gateway, body = asked.scope, asked.gateway, asked.body
    if body.keep_place and asked.secret is None:
        raise RequestError(
            bad_request("body: keep_place: a place is kept for a client that has its X-Lease-Secret, and there is none")
        )
    if asked.secret is not None and body.next is not None and body.next.limit > 1:
        raise RequestError(bad_request("X-Lease-Secret: it is that of one lease, and next asks for several (limit)"))
    peer = scope.get("client")
    wanted = LockRequest(
        names=() if body.next else body.names,
        secret=asked.secret if asked.secret is not None else secrets.token_urlsafe(32),
        chosen=asked.secret is not None,
        owner=body.owner or (peer[0] if peer else "unknown"),
        owner_given=bool(body.owner),
        ttl_ms=body.ttl_ms,
        # A waiting client is answered sooner than it asked for, and may ask again.
        wait_ms=min(body.wait_ms, gateway.locks.limits.wait_ms),
        tokens=body.tokens,
        claims=body.claim,
        keep_place=body.keep_place,
        source=body.source,
        writes=body.writes,
    )
    async with leaving(scope) if wanted.wait_ms else nullcontext(hung_up(scope)) as gone:
        back = partial(may_ask_again, scope)
        outcome: Granted | list[TakenRow] | Problem = (
            await leases.acquire_lease(gateway, wanted, gone, back)
            if body.next is None
            else await take_next(gateway, wanted, body.next, gone, back)
        )
        if gone.done():
            refuse_if_over(scope, gone, gateway.report_if_forbidden)
    match outcome:
        case Problem():
            return problem_response(outcome)
        case Granted():
            return _granted(outcome, wanted.secret)
        case []:
            return _nothing()
        case [taken] if body.next is None or body.next.limit == 1:
            return _granted(taken.granted, taken.wanted.secret)
    bodies = [grant_body(taken.granted, taken.wanted.secret) for taken in outcome]
    return Response(orjson.dumps({"leases": bodies}), 201, {"Cache-Control": "no-store"}, "application/json")


def _granted(granted: Granted, secret: str) -> Response:
    headers = {"Cache-Control": "no-store", "Location": f"/v1/leases/{granted.lease.id}"}
    status = 201 if granted.verdict == "granted" else 200
    return Response(orjson.dumps(grant_body(granted, secret)), status, headers, "application/json")


async def delete_acquire(asked: Asked[NoQuery, None]) -> Response:
    """Withdraw an acquire with a secret of one's own, whatever has become of it: its lease is released, its place
    in the queue is free, and a request that is still under way is granted nothing. The secret is used up.
    """
    problem = await leases.withdraw(asked.gateway, asked.lease_secret)
    return _nothing() if problem is None else problem_response(problem)


async def get_lease(asked: Asked[NoQuery, None]) -> Response:
    """Show the state of a live lease. It takes no secret and shows none."""
    found = await leases.inspect(asked.gateway, read_lease_id(asked.part("lease_id")))
    return problem_response(found) if isinstance(found, Problem) else json_response(state_body(found))


async def post_renew(asked: Asked[NoQuery, RenewRequest]) -> Response:
    """Let the lease live for its TTL from now on. A lease whose time has run out cannot be renewed."""
    lease_id = read_lease_id(asked.part("lease_id"))
    found = await leases.renew(asked.gateway, lease_id, asked.lease_secret, asked.body.ttl_ms or None)
    return problem_response(found) if isinstance(found, Problem) else json_response(state_body(found))


async def post_tokens(asked: Asked[NoQuery, MintRequest]) -> Response:
    """Draw fresh tokens, each good for one write of a resource under the rule strict."""
    lease_id = read_lease_id(asked.part("lease_id"))
    found = await leases.mint(asked.gateway, lease_id, asked.lease_secret, asked.body.count)
    return problem_response(found) if isinstance(found, Problem) else json_response(mint_body(found))


async def delete_lease(asked: Asked[NoQuery, None]) -> Response:
    """Give the locks back and wake the first waiter. Harmless when the lease is over already."""
    try:
        lease_id = read_lease_id(asked.part("lease_id"))
    except RequestError:  # no lease of such an id can be held
        return _nothing()
    problem = await leases.release(asked.gateway, lease_id, asked.lease_secret)
    return _nothing() if problem is None else problem_response(problem)


async def get_locks(asked: Asked[LockQuery, None]) -> Response:
    """List locks that are held or waited for, by name. Idle locks do not appear: nothing is kept of them."""
    query = asked.query
    names = None if query.name is None else [query.name]
    found = await leases.locks(asked.gateway, query.source, names, query.after, query.limit)
    if isinstance(found, Problem):
        return problem_response(found)
    return json_response([lock_body(query.source, each) for each in found])


def _nothing() -> Response:
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


_ONE: Final = "/v1/leases/{lease_id}"
_ID: Final[tuple[Part, ...]] = (
    {
        "name": "lease_id",
        "in": "path",
        "required": True,
        "description": "The lease's id.",
        "schema": {"type": "string"},
        "example": "41",
    },
)
_BAD: Final = (400, "The body or the secret cannot be read.")
_NO_BODY: Final = ((413, "The body is too large."), (415, "The body is not JSON."))
_LOST: Final = (410, "The lease is lost, unknown, or another client's.")
_AWAY: Final = (503, "The database or the lock service cannot be asked, or whether it was done is not known.")
_FAILED: Final = (502, "The lock service answered, and would not do it.")

LEASES: Final = (
    Route(
        *("POST", "/v1/leases", post_lease, "Acquire a lock, or several, with a lease and its tokens", "leases"),
        needs="lock",
        kind="lease",
        names_resources=True,
        secret="may",  # noqa: S106 - no secret
        body=LeaseRequest,
        example={"lock": "accounts/account-123", "owner": "worker-a", "ttl_ms": 30000},
        answers={
            201: Answered("The lease, or those of the next rows.", LeaseAnswer | LeasesAnswer),
            200: Answered("The same secret again: the same lease.", LeaseAnswer),
            204: Answered("There is no next row."),
        },
        refusals=(
            _BAD,
            (403, "A claimed table is not protected."),
            (404, "A claimed table does not exist."),
            (409, "A claimed resource takes the tokens of another source."),
            *_NO_BODY,
            (423, "Another client holds a lock, or has been waiting for it longer."),
            _FAILED,
            _AWAY,
        ),
    ),
    Route(
        *("DELETE", "/v1/leases", delete_acquire, "Withdraw an acquire", "leases"),
        needs="lock",
        kind="lease",
        secret="must",  # noqa: S106
        answers={204: Answered("It is withdrawn.")},
        refusals=(_BAD, _FAILED, (503, "A request with this secret is under way, or the database is away.")),
    ),
    Route(
        *("GET", _ONE, get_lease, "Look at a lease", "leases"),
        needs="lock",
        parameters=_ID,
        answers={200: Answered("The lease.", LeaseState)},
        refusals=((400, "The request has parameters or headers that this route does not take."), _LOST, _AWAY),
    ),
    Route(
        *("POST", f"{_ONE}/renew", post_renew, "Keep a lease alive", "leases"),
        needs="lock",
        kind="lease",
        parameters=_ID,
        secret="must",  # noqa: S106
        body=RenewRequest,
        may_lack_body=True,
        example={"ttl_ms": 30000},
        answers={200: Answered("The lease, renewed.", LeaseState)},
        refusals=(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
    ),
    Route(
        *("POST", f"{_ONE}/tokens", post_tokens, "Mint more tokens under a lease", "leases"),
        needs="lock",
        kind="lease",
        parameters=_ID,
        secret="must",  # noqa: S106
        body=MintRequest,
        may_lack_body=True,
        example={"count": 10},
        answers={200: Answered("The tokens.", MintAnswer)},
        refusals=(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
    ),
    Route(
        *("DELETE", _ONE, delete_lease, "Release a lease", "leases"),
        needs="lock",
        kind="lease",
        parameters=_ID,
        secret="must",  # noqa: S106
        answers={204: Answered("It is released.")},
        refusals=(_BAD, (410, "The lease is held, and the secret is not its holder's."), _FAILED, _AWAY),
    ),
    Route(
        *("GET", "/v1/locks", get_locks, "Who holds locks, and who waits", "leases"),
        needs="lock",
        query=LockQuery,
        answers={200: Answered("The locks, by name.", list[LockAnswer])},
        refusals=((400, "The query or a header cannot be read."), _AWAY),
    ),
)
