"""The errors of the client, and the problem document that a refusal of the gateway comes with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

# An error's body, read: RFC 9457's members, PostgREST's, and what Fencepost adds (R18).
#
# Reading never raises: an answer that is not quite a problem still has to become an error with what it has.


@dataclass(frozen=True, slots=True)
class Superseded:
    """Whose a token is, as far as it is known: the built-in source and those that a gateway asks know it."""

    holder: str | None
    lease_id: str | None
    locks: tuple[str, ...]
    granted_at: datetime | None
    issued_at: datetime | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One `application/problem+json`. `members` has all of it; the rest are its best-known members, typed."""

    members: Mapping[str, Any]
    status: int
    retry_after: float | None = None

    @property
    def code(self) -> str | None:
        """FPnnn, or PostgreSQL's SQLSTATE; None when something else than Fencepost answered."""
        return self.text("code")

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again, by the gateway's answer."""
        return self.members.get("retryable") is True

    @property
    def superseded_by(self) -> Superseded | None:
        return _read_superseded(self.members.get("superseded_by"))

    @property
    def presented_by(self) -> Superseded | None:
        return _read_superseded(self.members.get("presented_by"))

    def text(self, name: str) -> str | None:
        """Return a member that is a string, or None."""
        found = self.members.get(name)
        return found if isinstance(found, str) else None

    def token(self, name: str) -> int | None:
        """Return a member that is a token (a decimal string), or None."""
        return as_token(self.members.get(name))

    def time(self, name: str) -> datetime | None:
        """Return a member that is a time, or None."""
        return as_time(self.members.get(name))


def as_token(found: object) -> int | None:
    """Read a token out of JSON."""
    return int(found) if isinstance(found, str) and found.isascii() and found.isdigit() else None


def as_time(found: object) -> datetime | None:
    """Read an ISO 8601 time out of JSON."""
    try:
        return datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None


def _read_superseded(found: object) -> Superseded | None:
    if not isinstance(found, Mapping):
        return None

    def text(name: str) -> str | None:
        return found[name] if isinstance(found.get(name), str) else None

    locks = found.get("locks")
    return Superseded(
        holder=text("holder"),
        lease_id=text("lease_id"),
        locks=tuple(str(name) for name in locks) if isinstance(locks, list) else (),
        granted_at=as_time(found.get("granted_at")),
        issued_at=as_time(found.get("issued_at")),
        source=text("source"),
    )


# Every error that the client raises by itself.
#
#     FencepostError
#     ├── ApiError                the gateway's answer, in `problem`; or what came instead of an answer
#     │   ├── StaleToken          FP001  a newer token was accepted here: stop
#     │   ├── SpentToken          FP002  strict: this token was already used here
#     │   ├── TokenRequired       FP003  no token on a protected table, or no seal on a sealed one
#     │   ├── WrongTokenSource    FP008  the mark comes from another token source
#     │   ├── UnissuedToken       FP018  the table's source has never issued this token
#     │   ├── SourceFailed        FP025  the lock service refused, and will again
#     │   ├── LockHeld            FP011  another client holds the lock, and the wait is over
#     │   ├── LeaseLost           FP012  the lease is lost, or can no longer be trusted to be ours
#     │   ├── Unauthenticated     401    FP036 no JWT or API key, FP037 one that is not accepted: ended, revoked,
#     │   │                              unknown
#     │   ├── Forbidden           403    FP005 unprotected table, FP038 a credential for other things, or no privilege
#     │   │   └── SealRefused     FP041  the token's seal is for other resources, has ended, or is none
#     │   ├── NotFound            404    FP007 unknown table, FP019 no such route
#     │   │   └── RowNotFound     FP006
#     │   ├── RowChanged          412    FP049  the row has another mark than the write names, or is gone
#     │   ├── BadRequest          400, 405, 406, 413, 415, 422: the request has to be mended
#     │   ├── ConstraintViolated  SQLSTATE 23…: the data was refused, and the token is not spent
#     │   ├── WriteFailed         a queued write that is a dead letter; `reason` is the error it would have been at
#     │   │                       once
#     │   ├── Unavailable         503, FP010 among them, or a request that was never sent: nothing was done
#     │   └── OutcomeUnknown      FP009, FP013, FP027, or a write whose answer never came: it may have landed
#     ├── RowsNotKept             a write that is done, whose rows were too large to be kept for its repetition
#     └── StillQueued             (a TimeoutError, too) a queued write is not decided yet
#
# Wrong arguments are ValueError and TypeError, as everywhere. Foreign errors (httpx's) become these in one place,
# `foreign_errors` of http.py.

# ruff: noqa: N818 - the public names: `except StaleToken` reads as what happened

LossReason = Literal["expired", "gone", "released"]
"""Why a lease is lost: not renewed in time; no longer held, by the gateway's answer; released by its holder."""

_NO_MEMBERS: Final[Mapping[str, Any]] = {}


class FencepostError(Exception):
    """Base of all errors of the client."""


class ApiError(FencepostError):
    """A request that did not do what was asked. `problem` is None when no gateway answered."""

    def __init__(
        self,
        message: str,
        problem: Problem | None = None,
        *,
        resource: str | None = None,
        presented_token: int | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self._resource = resource
        self._presented_token = presented_token

    @property
    def members(self) -> Mapping[str, Any]:
        """All members of the problem; empty without one."""
        return self.problem.members if self.problem else _NO_MEMBERS

    @property
    def status(self) -> int | None:
        """The HTTP status."""
        return self.problem.status if self.problem else None

    @property
    def code(self) -> str | None:
        """FPnnn, or an SQLSTATE."""
        return self.problem.code if self.problem else None

    @property
    def type(self) -> str | None:
        """The path of the page that explains this kind of error, on the gateway."""
        return self._text("type")

    @property
    def detail(self) -> str | None:
        """What happened, in a sentence."""
        return self._text("detail")

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        return self._text("hint")

    @property
    def resource(self) -> str | None:
        """What the fence covers: `orders/order-1`."""
        return self._text("resource") or self._resource

    @property
    def presented_token(self) -> int | None:
        """The token that the request carried."""
        token = self.problem.token("presented_token") if self.problem else None
        return self._presented_token if token is None else token

    @property
    def current_token(self) -> int | None:
        """The mark that it was compared with. None under the rule epoch: there the mark is a token that is accepted
        still, and the gateway does not show it.
        """
        return self.problem.token("current_token") if self.problem else None

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again. The client has already done so, as its `retry` allows."""
        return self.problem is not None and self.problem.retryable

    @property
    def retry_after(self) -> float | None:
        """After how many seconds it may be worth it."""
        return self.problem.retry_after if self.problem else None

    @property
    def superseded_by(self) -> Superseded | None:
        """Who came after the caller, where it is known (R18)."""
        return self.problem.superseded_by if self.problem else None

    @property
    def presented_by(self) -> Superseded | None:
        """Whose token the caller has presented, where it is known (R18)."""
        return self.problem.presented_by if self.problem else None

    def _text(self, name: str) -> str | None:
        return self.problem.text(name) if self.problem else None


class StaleToken(ApiError):
    """A newer token was accepted here (FP001). Never retried: acquire the lock anew, and decide again."""


class SpentToken(ApiError):
    """Under the rule strict this very token was already accepted here (FP002)."""


class TokenRequired(ApiError):
    """A write to a protected table carried no token, or one without a seal where the table wants it (FP003)."""


class WrongTokenSource(ApiError):
    """The resource's mark comes from another token source (FP008)."""


class SourceFailed(ApiError):
    """The lock service answered, and would not do what was asked (FP025). Trying again does not help."""


class UnissuedToken(ApiError):
    """The table's token source has never issued this token (FP018)."""


class LockHeld(ApiError):
    """Another client holds the lock (FP011), or waits for it in front of us."""

    @property
    def lock(self) -> str | None:
        """The first of the locks asked for that is held."""
        return self._text("lock")

    @property
    def holder(self) -> str | None:
        """Its holder's `owner`; None when it is free and others wait for it."""
        return self._text("holder")

    @property
    def held_since(self) -> datetime | None:
        """When it was granted, by the database's clock."""
        return self.problem.time("held_since") if self.problem else None

    @property
    def held_until(self) -> datetime | None:
        """When it expires unless it is renewed, by the database's clock."""
        return self.problem.time("held_until") if self.problem else None

    @property
    def waiting(self) -> int | None:
        """How many wait for it."""
        count = self.members.get("waiting")
        return count if isinstance(count, int) else None


class LeaseLost(ApiError):
    """The lease is no longer ours, or that is uncertain (FP012). Nothing was sent under it since."""

    def __init__(self, message: str, problem: Problem | None = None, *, reason: LossReason = "gone") -> None:
        super().__init__(message, problem)
        self.reason: LossReason = reason

    @property
    def lease_id(self) -> str | None:
        """The lease's public id, if the answer has it."""
        return self._text("lease_id")


class Unauthenticated(ApiError):
    """The request carried no JWT or API key (FP036), or one that the gateway does not accept (FP037). Nothing was done.

    Where the client has a callable for them, it has asked it once more, and the new one was refused too.
    """


class Forbidden(ApiError):
    """The table is not protected (FP005), the JWT or API key is for other things (FP038), or the database role may not
    do it.
    """


class SealRefused(Forbidden):
    """The token's seal does not allow the write (FP041): it is bound to other resources, or has ended, or is none of
    the gateway's. Nothing was done. Of a lease whose seals have ended the client has minted anew, and tried once more.
    """

    @property
    def reason(self) -> str | None:
        """`other-resource`, `other-source`, `ended`, `unknown-key` or `wrong-seal`."""
        return self._text("reason")

    @property
    def outlived(self) -> bool:
        """Whether tokens that are minted now would have a seal that is good."""
        return self.reason in ("ended", "unknown-key")


class NotFound(ApiError):
    """There is no such table, or no such route."""


class RowNotFound(NotFound):
    """There is no such row (FP006)."""


class RowChanged(ApiError):
    """The row's mark is not the one that `if_match` names, or there is no row (FP049). Nothing was done, and the token
    is not spent: read the row, decide anew, write with the mark that it has now.
    """


class BadRequest(ApiError):
    """The request cannot be understood; `detail` names what and where."""


class ConstraintViolated(ApiError):
    """A constraint of the table refused the data; `code` is the SQLSTATE. The token is not spent."""


class Unavailable(ApiError):
    """The gateway or its database cannot be reached, or is overloaded. Nothing was done.

    `may_repeat` is False where trying again cannot help: the request itself could not be built.
    """

    def __init__(self, message: str, problem: Problem | None = None, *, may_repeat: bool = True) -> None:
        super().__init__(message, problem)
        self.may_repeat = may_repeat


class OutcomeUnknown(ApiError):
    """A write that may have landed, or may still (FP009): it was repeated under its Idempotency-Key, and no attempt had
    an answer; or one of them is still being worked on (FP013).

    Repeat it with the same `idempotency_key` when the gateway can be reached: it is done once. The next write to the
    resource under the same lease carries a higher token, so this one cannot land after that.
    """

    idempotency_key: str | None = None
    """The key that it was sent with. None for a lease's own claims."""


class WriteFailed(ApiError):
    """A queued write was refused for what is in it, and is a dead letter: `fencepost dead show` has it. It has not
    been done, and will not be unless an operator retries it. `problem` is what the write would have been answered.
    """

    def __init__(self, write_id: str, reason: ApiError) -> None:
        super().__init__(f"write {write_id} failed, and is a dead letter: {reason}", reason.problem)
        self.write_id = write_id
        self.reason = reason

    def __reduce__(self) -> tuple[type["WriteFailed"], tuple[str, ApiError]]:
        return type(self), (self.write_id, self.reason)


class RowsNotKept(FencepostError):
    """A write is done, and so is not to be sent again; its rows cannot be had from it any more: its first answer was
    lost, or it was queued, and the gateway keeps small answers only. Read the rows.
    """


class StillQueued(FencepostError, TimeoutError):
    """A queued write was not decided within the time that was given. It may be decided at any moment."""


# Which of these errors a problem is: by its code, by what it says of the write, by its status.

_BY_CODE: Final[dict[str, type[ApiError]]] = {
    "FP001": StaleToken,
    "FP002": SpentToken,
    "FP003": TokenRequired,
    "FP006": RowNotFound,
    "FP008": WrongTokenSource,
    "FP009": OutcomeUnknown,
    "FP011": LockHeld,
    "FP012": LeaseLost,
    "FP013": OutcomeUnknown,
    "FP018": UnissuedToken,
    "FP025": SourceFailed,
    "FP027": OutcomeUnknown,
    "FP033": Unavailable,
    "FP041": SealRefused,
    "FP049": RowChanged,
}
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    406: BadRequest,
    413: BadRequest,
    415: BadRequest,
    421: BadRequest,
    422: BadRequest,
    431: BadRequest,
}
_SERVER_FAILED: Final = 500
_UNAVAILABLE: Final = (429, 503)
_INTERNAL_ERROR: Final = "FP023"
_INTEGRITY = re.compile(r"23[0-9A-Z]{3}")


def error_of(problem: Problem, *, writes: bool = False) -> ApiError:
    """Give the error for a problem. `writes`: if the write may have been done, the error is OutcomeUnknown."""
    code = problem.code
    kind = _BY_CODE.get(code or "") or _by_extent(problem, writes=writes) or _BY_STATUS.get(problem.status, ApiError)
    if code and _INTEGRITY.fullmatch(code):
        kind = ConstraintViolated
    detail = problem.text("detail") or f"the answer was {problem.status}"
    return kind(f"{detail} ({code})" if code else detail, problem)


def _by_extent(problem: Problem, *, writes: bool) -> type[ApiError] | None:
    """Sort the gateway's failures: nothing was done, or it is unknown what was done."""
    if problem.code is not None and problem.status in _UNAVAILABLE and problem.retryable:
        return Unavailable
    if problem.status < _SERVER_FAILED or problem.code not in (None, _INTERNAL_ERROR):
        return None
    # The gateway's own failure, or a proxy's 502 or 504: the write may have been done.
    if writes:
        return OutcomeUnknown
    return Unavailable if problem.code is None else None
