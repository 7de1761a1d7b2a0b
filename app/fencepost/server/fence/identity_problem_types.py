"""The errors of requests whose caller is not known, or may not ask for this."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

AUTHENTICATION_REQUIRED: Final = ProblemType(
    "FP036",
    401,
    "authentication-required",
    "The request does not say who sends it",
    "The gateway serves known callers only, and the request has no `Authorization: Bearer …` header. Nothing was done.",
    "Send a JWT or an API key: `Authorization: Bearer …`. The operator of the gateway hands them out.",
)
INVALID_CREDENTIAL: Final = ProblemType(
    "FP037",
    401,
    "invalid-credential",
    "The JWT or API key is not accepted",
    "The JWT or the API key in the header Authorization is not one that the gateway accepts: it has ended, it is for "
    "another service, or no key of the gateway has signed it. The detail says which. Nothing was done.",
    "Get a new one, and send the request again with it.",
)
INSUFFICIENT_SCOPE: Final = ProblemType(
    "FP038",
    403,
    "insufficient-scope",
    "The JWT or API key is not for this kind of request",
    "A JWT's claim `scope`, or the API key, names what it may be used for: `read` (rows and fences), `write` (writes "
    "and claims), `lock` (leases, locks and elections). This request needs another. Nothing was done.",
    "Use a JWT or an API key that names it.",
)
VERIFICATION_UNAVAILABLE: Final = ProblemType(
    "FP039",
    503,
    "verification-unavailable",
    "The JWT or API key cannot be checked for now",
    "What the gateway needs to check it cannot be had: the set of public keys (JWKS) was not fetched for too long, or "
    "the database cannot be asked for API keys. Nothing was done.",
    "Try again after the seconds in Retry-After. The gateway's log says what it cannot reach.",
    retryable=True,
)

IDENTITY_PROBLEM_TYPES: Final = (
    AUTHENTICATION_REQUIRED,
    INVALID_CREDENTIAL,
    INSUFFICIENT_SCOPE,
    VERIFICATION_UNAVAILABLE,
)
"""All of them, in the order of their codes."""
