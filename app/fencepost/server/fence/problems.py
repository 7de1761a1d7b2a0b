"""One error, as it happened, and the body that carries it.

One body serves two conventions, RFC 9457's `type title status detail` and PostgREST's `code message details hint`.
"""

from dataclasses import dataclass, field

from fencepost.server.fence.caller import Access, Caller
from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    INSUFFICIENT_SCOPE,
    ROW_NOT_FOUND,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNISSUED_TOKEN,
    WRONG_TOKEN_SOURCE,
    ProblemType,
)
from fencepost.server.fence.resource import bounded, bounded_within
from fencepost.server.fence.token import (
    BUILTIN,
    GENERATION_BITS,
    BeyondCeiling,
    MissingRow,
    Refusal,
    Rule,
    Spent,
    Stale,
    Token,
    Unissued,
    shown_mark,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error, as it happened. `status`, `code`, `hint` and `retry_after` default to the type's own."""

    type: ProblemType
    detail: str
    hint: str | None = None
    details: str | None = None
    code: str | None = None
    status: int | None = None
    resource: str | None = None
    presented_token: Token | None = None
    current_token: int | None = None
    """The mark that the token was compared with. An answer shows it if `shows_mark`."""
    shows_mark: bool = True
    retry_after: int | None = None
    for_good: bool = False
    """Of FP037: the caller will never be let in again, with whichever credential."""
    extra: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take from the type what is not given, and bound the sentences: they may repeat what a request sent."""
        if self.retry_after is None:
            object.__setattr__(self, "retry_after", self.type.retry_after)
        if self.hint is None:
            object.__setattr__(self, "hint", self.type.hint)
        for name in ("detail", "hint", "details"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, bounded(text))

    @property
    def http_status(self) -> int:
        return self.status if self.status is not None else self.type.status

    @property
    def name(self) -> str:
        """The code to answer with: FPnnn, or PostgreSQL's SQLSTATE."""
        return self.code or self.type.code or "FP023"

    def body(self) -> dict[str, object]:
        """The answer's members, all of them present. Tokens are strings: JavaScript loses integers past 2^53."""
        return {
            "type": f"/problems/{self.type.slug}",
            "title": self.type.title,
            "status": self.http_status,
            "detail": self.detail,
            "code": self.name,
            "message": self.detail,
            "details": self.details,
            "hint": self.hint,
            "resource": bounded_within(self.resource),
            "presented_token": _text(self.presented_token),
            "current_token": _text(self.current_token if self.shows_mark else None),
            "retryable": self.type.retryable,
            **{name: bounded_within(value) for name, value in self.extra.items()},
        }


def _text(token: int | None) -> str | None:
    return None if token is None else str(token)


def problem_of(verdict: Refusal | MissingRow, rule: Rule) -> Problem:
    """Make the problem that answers a refusal."""
    match verdict:
        case Stale(resource, presented, mark):
            shown = shown_mark(rule, mark)
            newer = "a newer one" if shown is None else f"token {shown}"
            return Problem(
                STALE_TOKEN,
                f"Token {presented} is stale for {resource}: {newer} has been accepted since.",
                resource=resource,
                presented_token=presented,
                current_token=mark,
                shows_mark=shown is not None,
            )
        case Spent(resource, presented, mark):
            return Problem(
                SPENT_TOKEN,
                f"Token {presented} was already used on {resource}.",
                hint=f"Under the rule {rule} each token writes a resource once: mint another, or protect the table "
                "with --rule epoch if the lock service gives one token per grant.",
                resource=resource,
                presented_token=presented,
                current_token=mark,
            )
        case Unissued():
            return _unissued_problem(verdict)
        case BeyondCeiling():
            return _beyond_ceiling(verdict, rule)
        case MissingRow(resource):
            return Problem(ROW_NOT_FOUND, f"There is no row {resource}.", resource=resource)


def _beyond_ceiling(verdict: BeyondCeiling, rule: Rule) -> Problem:
    """Make the problem of a token above the ceiling of an external table (R12)."""
    resource, presented, highest, jump = verdict.resource, verdict.presented, verdict.highest, verdict.max_jump
    shown: dict[str, object] = {"highest": str(highest)}
    if jump is None:
        why = f"is above {highest}, the highest that its table takes"
        option = "--max-token N` sets the highest token that the table takes"
    else:
        base = shown_mark(rule, highest - jump)
        why = (
            f"is more than {jump} above {'' if base is None else f'{base}, '}the mark or floor from which it would rise"
        )
        shown = shown if base is not None else {}
        option = "--max-jump N` sets how far a token may be above the mark"
    return Problem(
        UNISSUED_TOKEN,
        f"Token {presented} for {resource} {why}: accepted, it would lock out all holders after it.",
        hint="Send the token as the lock service gave it. If that has counted so far: `fencepost protect TABLE "
        f"{option}.",
        resource=resource,
        presented_token=presented,
        extra=shown,
    )


def _unissued_problem(verdict: Unissued) -> Problem:
    """Make the problem of a token that its source does not know: not yet, or not in this generation (R12). How far it
    has counted is not said: the newest number is a live holder's token.
    """
    resource, presented, issued, source = verdict.resource, verdict.presented, verdict.issued, verdict.source
    kind = UNISSUED_TOKEN
    if source == BUILTIN:
        detail = "was never issued: the built-in source has not counted so far."
        hint = "Tokens of this table come from leases: POST /v1/leases, or `fencepost lock`."
    elif presented >> GENERATION_BITS > issued >> GENERATION_BITS:
        kind = WRONG_TOKEN_SOURCE
        detail = (
            f"is of generation {presented >> GENERATION_BITS}, and the source {source} is at generation"
            f" {issued >> GENERATION_BITS}: it is none of its tokens."
        )
        hint = "Send the token as it came with the lease."
    else:
        detail = f"was never issued, as far as is known here: the source {source} has not counted so far."
        hint = (
            f'Acquire through POST /v1/leases with "source": "{source}". For locks that are taken elsewhere,'
            " `fencepost protect --verify` asks the source."
        )
    return Problem(
        kind,
        f"Token {presented} for {resource} {detail}",
        hint=hint,
        resource=resource,
        presented_token=presented,
    )


def example_problem(kind: ProblemType) -> Problem:
    """Give the error that the type's page and OpenAPI show."""
    return Problem(kind, **kind.example)


def bad_request(detail: str, hint: str | None = None) -> Problem:
    """Refuse what cannot be understood; the detail names what and where."""
    return Problem(BAD_REQUEST, detail, hint=hint)


def out_of_scope(caller: Caller, wanted: Access) -> Problem:
    """Refuse what a caller's token or key is not for."""
    has = ", ".join(sorted(caller.access)) or "none of read, write and lock"
    return Problem(
        INSUFFICIENT_SCOPE, f"This needs the scope {wanted}; the JWT or API key has {has}.", extra={"scope": wanted}
    )
