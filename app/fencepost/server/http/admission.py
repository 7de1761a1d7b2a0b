"""Whether a request's caller is known, and may ask for this: looked at before any route, for all of them.

A route that is not named here is for known callers.
"""

from dataclasses import dataclass
from typing import Final, Literal

from starlette.types import Scope

from fencepost.server.fence.caller import ANONYMOUS, CALLER, EVERY_ACCESS, EVERYBODY, Access, Caller
from fencepost.server.fence.problem_types import AUTHENTICATION_REQUIRED, INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.http.caller import network_of
from fencepost.server.http.hanging_up import STANDING
from fencepost.server.http.rate_limits import HEADERS, Counter, RateLimits
from fencepost.server.identity.authenticator import Authenticator, Standing

_OPEN: Final = frozenset({"/healthz", "/docs", "/problems"})
_OPEN_UNDER: Final = ("/docs/assets/", "/problems/")
_MORE_FOR_CALLERS: Final = frozenset({"/", "/readyz"})
"""Open, too; known callers are shown more."""
_LOCKS: Final = ("/v1/leases", "/v1/locks", "/v1/elections")
_READS: Final = frozenset({"GET", "HEAD"})

_NAMED: Final = frozenset({"/metrics"})
"""For callers with a name: a request without a credential does not see them, whatever else it may."""
_NOBODY: Final = Caller(ANONYMOUS, access=frozenset())
"""The caller of a request to an open route."""

Needs = Access | Literal["nothing", "a caller", "a name"]


def needs(method: str, path: str) -> Needs:
    """Say what a request's caller must be allowed to do."""
    if path.startswith("/v1/data/"):
        return "read" if method in _READS else "write"
    if path.startswith(_LOCKS):
        return "lock"
    if path.startswith("/v1/fences"):
        return "read"
    if path.startswith(
        ("/v1/batch", "/v1/claims", "/v1/writes")
    ):  # what became of a queued write is for those who may write
        return "write"
    if path in _OPEN or path.startswith(_OPEN_UNDER):
        return "nothing"
    return "a name" if path in _NAMED else "a caller"


def counted_as(method: str, path: str) -> Counter:
    """Say what a request counts as. A holder that writes much must not lose its leases by that: what keeps a lease, or
    gives it back, has a counter of its own.
    """
    keeps = path.startswith("/v1/leases") and (method == "DELETE" or path.endswith("/renew"))
    return "lease" if keeps else "caller"


def is_for_all(path: str) -> bool:
    """Say whether a route is open, and shows more to known callers."""
    return path in _MORE_FOR_CALLERS


def is_named(scope: Scope) -> bool:
    """Say whether the caller of a request is known. Where there is no authentication, all are."""
    caller: Caller = scope.get(CALLER, EVERYBODY)
    return caller.name != ANONYMOUS


def is_nobody(scope: Scope) -> bool:
    """Say whether a request came to an open route only because the route is open: its caller is not known, and there is
    no role for such callers.
    """
    return scope.get(CALLER) is _NOBODY


class Admission:
    """Asks the authenticator, and puts the caller into the request's scope."""

    def __init__(self, authenticator: Authenticator, limits: RateLimits) -> None:
        self._authenticator, self._limits = authenticator, limits

    def admit(self, scope: Scope, credentials: list[bytes]) -> "Problem | Unverified | None":
        """Let a request in whose caller is known; or say why not, or that its credential is to be verified first."""
        if len(credentials) > 1:
            return bad_request(f"Authorization: {len(credentials)} headers, and a request has one.")
        credential = credentials[0] if credentials else None
        caller = self._authenticator.known(credential)
        if caller is not None:
            return self.enter(scope, caller, credential)
        if _is_open(scope, credential):
            scope[CALLER] = _NOBODY
            return None
        return Unverified(self, scope, credential)

    async def identify(self, scope: Scope, credential: bytes | None) -> Caller | Problem:
        """Find the caller, unless its address has failed too often."""
        if credential is None:
            return await self._authenticator.identify(None)
        address = network_of(scope)
        # A client that sends bad credentials must not keep others at its address from renewing their leases.
        if not self._authenticator.was_accepted(credential) and (limited := self._limits.failing(address)) is not None:
            return limited
        found = await self._authenticator.identify(credential)
        if isinstance(found, Problem) and found.type is INVALID_CREDENTIAL:
            self._limits.failed(address)
        return found

    def enter(self, scope: Scope, caller: Caller, credential: bytes | None) -> Problem | None:
        """Let this caller's request in, or say why not."""
        scope[CALLER] = caller
        scope[STANDING] = Standing(self._authenticator, caller, credential)
        if is_for_all(scope["path"]) or needs(scope["method"], scope["path"]) == "nothing":
            return None  # probes of health count for no caller
        anonymous = caller is self._authenticator.anonymous
        counter = counted_as(scope["method"], scope["path"])
        limited, scope[HEADERS] = self._limits.take(caller, network_of(scope) if anonymous else None, counter)
        if limited is not None:
            return limited
        if caller.access is EVERY_ACCESS:
            return None
        wanted = needs(scope["method"], scope["path"])
        if not anonymous:
            return out_of_scope(caller, wanted) if wanted in EVERY_ACCESS - caller.access else None
        if wanted == "a name" or wanted in EVERY_ACCESS - caller.access:
            return Problem(AUTHENTICATION_REQUIRED, "This is not for requests without a credential.")
        return None


@dataclass(frozen=True, slots=True)
class Unverified:
    """A request whose caller is not known yet."""

    admission: Admission
    scope: Scope
    credential: bytes | None

    async def verify(self) -> Problem | None:
        """Find the caller, and let the request in, or say why not."""
        found = await self.admission.identify(self.scope, self.credential)
        return found if isinstance(found, Problem) else self.admission.enter(self.scope, found, self.credential)


def _is_open(scope: Scope, credential: bytes | None) -> bool:
    """Whether a request needs no caller. Where callers are shown more, a credential that is there is looked at."""
    if credential is None and is_for_all(scope["path"]):
        return True
    return needs(scope["method"], scope["path"]) == "nothing"
