"""The errors of callers that are known, and ask for more than is theirs."""

from typing import Final

from fencepost.server.fence.database_problem_types import PERMISSION_DENIED
from fencepost.server.fence.identity_problem_types import IDENTITY_PROBLEM_TYPES
from fencepost.server.fence.problem_type import ProblemType
from fencepost.server.fence.role_problem_types import ROLE_PROBLEM_TYPES
from fencepost.server.fence.seal_problem_types import SEAL_REFUSED

LOCK_FORBIDDEN: Final = ProblemType(
    "FP045",
    403,
    "lock-forbidden",
    "The lock is not for this caller",
    "The caller's token or key has patterns of the locks and elections that it may see and take, and the name fits "
    "none of them. Nothing was done.",
    "Use a lock whose name fits one of the patterns. They are in the claim `locks` of the token, or belong to the key.",
)

RATE_LIMITED: Final = ProblemType(
    "FP046",
    429,
    "rate-limited",
    "There were too many requests",
    "The caller has sent more requests than one may send in this time, or the address more tokens that are not "
    "accepted. Nothing was done.",
    "Wait for the seconds in Retry-After. The fields RateLimit-Policy and RateLimit of each answer show how many may "
    "be sent and how many are left. The bounds are FENCEPOST_RATE_LIMIT and FENCEPOST_FAILED_RATE_LIMIT.",
    retryable=True,
)

ACCESS_PROBLEM_TYPES: Final = (LOCK_FORBIDDEN, RATE_LIMITED)
"""All of them, in the order of their codes."""

OF_CALLERS: Final = frozenset(
    {*IDENTITY_PROBLEM_TYPES, *ACCESS_PROBLEM_TYPES, *ROLE_PROBLEM_TYPES, PERMISSION_DENIED, SEAL_REFUSED}
)
"""Those that a request gets for who its caller is: they are counted by caller."""
