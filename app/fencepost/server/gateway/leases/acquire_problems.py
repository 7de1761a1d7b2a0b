"""Why an acquire was refused."""

from collections.abc import Sequence
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, LOCK_FORBIDDEN, LOCK_HELD, OUTCOME_UNKNOWN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway.refusals import RETRY_AFTER, problem_of_refused, source_problem, unavailable
from fencepost.server.locks.source import SourceError
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.leases import Acquired

_ONE_SECRET: Final = frozenset({"leases_secret_hash_key", "source_leases_secret_hash_key"})


def forbidden_lock(caller: Caller, names: Sequence[str]) -> Problem | None:
    """Refuse locks that are not for this caller."""
    name = next((name for name in names if not caller.may_lock(name)), None)
    if name is None:
        return None
    return Problem(
        LOCK_FORBIDDEN,
        f"The lock {name!r:.120} is not for {caller.name}.",
        hint=f"The caller's token or key has these patterns: {', '.join(caller.locks or ()) or 'none'}.",
        extra={"lock": name},
    )


def mismatch() -> Problem:
    """Refuse a secret that is taken."""
    return bad_request(
        "X-Lease-Secret: this secret is that of a live lease of other locks, claims or writes, or of another owner",
        "Choose a new secret for every lease; repeat one only to repeat the same request.",
    )


def lock_held(acquired: Acquired, source: str = BUILTIN) -> Problem:
    """Return who is in the way."""
    if source != BUILTIN:
        by = "another client" if acquired.owner is None else acquired.owner
        detail = f"{acquired.lock} is held by {by}, according to {source}."
    elif acquired.lease_id is None and not acquired.waiting:
        detail = f"{acquired.lock} is being granted to another client at this moment."
    elif acquired.lease_id is None:
        detail = f"{acquired.lock} is free, and {acquired.waiting} others have been waiting for it."
    else:
        detail = f"{acquired.owner} has held {acquired.lock} since {acquired.granted_at}."
    return Problem(
        LOCK_HELD,
        detail,
        hint="Wait with wait_ms, or try again after Retry-After.",
        retry_after=max(-(-(acquired.due_ms or 0) // 1000), 1),
        extra={
            "lock": acquired.lock,
            "holder": acquired.owner,
            "source": source,
            "lease_id": None if acquired.lease_id is None else str(acquired.lease_id),
            "held_since": acquired.granted_at,
            "held_until": acquired.expires_at,
            "waiting": acquired.waiting,
        },
    )


def nothing_held() -> Problem:
    """Say that nothing was granted, to a client that may still read."""
    return bad_request(
        "The client closed its half of the connection before the lock was granted: nothing is held.",
        "Close it after the answer.",
    )


def withdrawn() -> Problem:
    """Refuse a secret whose acquire was withdrawn."""
    return bad_request(
        "X-Lease-Secret: the acquire with this secret was withdrawn (DELETE /v1/leases): it is granted nothing.",
        "Choose a new secret for every lease.",
    )


def problem_of(error: StorageError | SourceError, source: str, *, chosen: bool) -> Problem:
    """Return what an error of an acquire means to its client. `chosen`: it chose the secret, and can ask again."""
    if isinstance(error, SourceError):
        return source_problem(error, source)
    if isinstance(error, RefusedError):
        if error.constraint in _ONE_SECRET:  # two requests at once, for different locks
            return mismatch()
        return problem_of_refused(error)
    if isinstance(error, OutcomeUnknownError):
        return Problem(
            OUTCOME_UNKNOWN,
            f"It is not known whether the lease was granted: {error}",
            hint="Repeat the request with the same X-Lease-Secret: a lease that was granted is found again."
            if chosen
            else "Send an X-Lease-Secret of your own, and such a request can be repeated. If this one was granted, "
            "no client knows its secret: its time runs out.",
            retry_after=RETRY_AFTER,
        )
    if isinstance(error, UnavailableError):
        return unavailable(error)
    return Problem(DATABASE_UNAVAILABLE, f"{error}", retry_after=RETRY_AFTER)
