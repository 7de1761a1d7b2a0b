"""The JSON of the system routes, as types: for OpenAPI on one side and for clients on the other."""

from typing import Literal, NotRequired

# Pydantic reads these, and wants typing_extensions' TypedDict before Python 3.12.
from typing_extensions import TypedDict


class ClaimRequest(TypedDict):
    """What to claim."""

    resource: str


class ClaimAnswer(TypedDict):
    """An accepted claim. `row` is null where the key has no row; the mark is raised all the same.

    The mark is null in an answer that is repeated by its Idempotency-Key, where another token has made it. There the
    row is left out, with `Preference-Applied: return=minimal`, where it was too large to be kept.
    """

    resource: str
    mark: str | None
    row: NotRequired[dict[str, object] | None]


class TokenHolder(TypedDict):
    """To whom a token of the table's source was issued, under which lease of which locks. The token itself may be one
    that writes are still accepted with, and is not shown.
    """

    holder: str
    lease_id: str
    locks: list[str]
    granted_at: str
    issued_at: str
    source: str


class StoryEvent(TypedDict):
    """One thing that is known of a resource. `at` is null where only the token is kept. `token` is null where the
    rule accepts it still.

    `by` is null where it is not known whose token it is: another source's, or too long ago.
    """

    event: str
    token: str | None
    at: str | None
    by: TokenHolder | None


class FenceAnswer(TypedDict):
    """What is known of a resource. The mark of one that was never written is "0". Under the rule epoch any other is
    null: it equals a token that is accepted still.

    `tables` is there for scopes: the tables whose rows share this mark. Of a row in one of them, its scope is shown.
    `max_token` and `max_jump` are there where the source is external: the highest token that is taken, and how far one
    may be above the mark (null: any distance). `sealed`: only sealed tokens are taken.
    """

    resource: str
    mark: str | None
    rule: Literal["strict", "epoch"]
    source: str
    sealed: bool
    row_exists: bool
    story: list[StoryEvent]
    tables: NotRequired[list[str]]
    max_token: NotRequired[str]
    max_jump: NotRequired[str | None]


class LeaseRequest(TypedDict, total=False):
    """What to acquire: one lock, or several of which all or none are granted. Times in milliseconds.

    `writes`: what the sealed tokens may be used for beside what locks and claims name: resources, or `orders/*`.
    """

    lock: str
    locks: list[str]
    owner: str
    ttl_ms: int
    wait_ms: int
    tokens: int
    claim: list[str]
    writes: list[str]
    keep_place: bool
    source: str


class LeaseAnswer(TypedDict):
    """A granted lease.

    The grant is not earlier than the request's start plus `waited_ms`; `remaining_ms` is what the database's clock left
    of the lease then, without the time that the claims took. `sealed_token` and `sealed_tokens` are the tokens with
    their seals, where the gateway has keys.
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


class RenewRequest(TypedDict, total=False):
    """How long the lease shall live from now on; without it, as long as before."""

    ttl_ms: int


class MintRequest(TypedDict, total=False):
    """How many tokens to draw; without it, one."""

    count: int


class MintAnswer(TypedDict):
    """Fresh tokens, in rising order; `token` is the first. With their seals where the gateway has keys."""

    lease_id: str
    token: str
    tokens: list[str]
    sealed_token: NotRequired[str]
    sealed_tokens: NotRequired[list[str]]
    expires_at: str


class WaiterAnswer(TypedDict):
    """A waiter in a lock's queue."""

    owner: str
    since: str
    until: str


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


class LeaderAnswer(TypedDict):
    """The leader of an election. `term` is the number of its lease: a later leader's is larger. It is no token."""

    term: str
    owner: str
    lease_id: str
    since: str
    expires_at: str
    remaining_ms: int


class ElectionAnswer(TypedDict):
    """An election as it stands. `candidates`: who waits to be elected, first come first; empty where only the lock
    service knows.
    """

    name: str
    source: str
    leader: LeaderAnswer | None
    candidates: list[WaiterAnswer]


class DecidedAnswer(TypedDict):
    """The answer that the same write would have had at once. `body`: row, rows or problem; null where it has none."""

    status: int
    headers: dict[str, str]
    body: object


class WriteAnswer(TypedDict):
    """A write that was queued, and what became of it. The body of the answer 202, too.

    `applied`: `answer` has a status of 2xx. `refused`: the fence refused its token. `failed`: it was refused for
    another reason. `answer` is null while it is `queued`; `reason` says why it was not applied. `dead_letter`: it is
    put aside as one, until an operator has it `dropped`, or retried: then `retried_as` is the id of the write that
    it was appended as.
    """

    id: str
    queue: str
    partition: int
    offset: int
    state: Literal["queued", "applied", "refused", "failed"]
    answer: DecidedAnswer | None
    reason: str | None
    dead_letter: bool
    dropped: bool
    retried_as: str | None


class Liveness(TypedDict):
    """The process is alive."""

    status: Literal["ok"]


class BareReadiness(TypedDict):
    """Whether requests can be served, for all who ask."""

    status: Literal["ready", "not ready"]


class Readiness(TypedDict):
    """Whether requests can be served, and each thing that this depends on."""

    status: Literal["ready", "not ready"]
    database: str
    schema: str
    origin: str
    catalog: str
    fences: dict[str, str]
    """Of the tables whose fence does not hold, by their names: why."""
    keys: str
    """Whether there are keys to verify JWTs by: `known`, `not fetched` where they are none of a JWKS, or why not."""
    sources: dict[str, str]
    queues: dict[str, str]
