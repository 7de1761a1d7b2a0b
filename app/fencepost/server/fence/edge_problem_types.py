"""The errors of requests that are refused before anything looks at what they ask for."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

WRONG_HOST: Final = ProblemType(
    "FP031",
    421,
    "wrong-host",
    "The gateway does not serve this host",
    "The header Host names another host than those that the gateway serves. A page of another site can reach a gateway "
    "in a private network under a name of its own (DNS rebinding), and Host has that name then. Nothing was done.",
    "Use a name that is served: localhost, 127.0.0.1 and [::1] are. Others are for the operator to allow: "
    "FENCEPOST_ALLOWED_HOSTS.",
)
CROSS_SITE: Final = ProblemType(
    "FP032",
    403,
    "cross-site",
    "The request comes from a page of another site",
    "The browser says, by Sec-Fetch-Site or Origin, that a page of another site sent the request. Such pages may read "
    "only what the gateway allows them to, and may change nothing. Nothing was done.",
    "A page that may use the gateway is allowed by its operator: FENCEPOST_CORS_ORIGINS. A program that is no browser "
    "sends neither header.",
)
REQUEST_TOO_SLOW: Final = ProblemType(
    "FP033",
    408,
    "request-too-slow",
    "The request did not arrive in time",
    "The head of a request is to be there ten seconds after its first byte, and the body within a minute and at one "
    "kilobyte a second. This one was not, or other clients needed its connection. Nothing was done.",
    "Send it again, on a new connection.",
    retryable=True,
)
HEAD_TOO_LARGE: Final = ProblemType(
    "FP034",
    431,
    "head-too-large",
    "The request's head is too large",
    "The path, the query and the headers of a request have more than 65536 bytes together. Nothing was done.",
    "Name fewer columns or filters. For many rows: a filter like ?id=in.(…) in several requests.",
)
TOO_MANY_CONNECTIONS: Final = ProblemType(
    "FP035",
    503,
    "too-many-connections",
    "There are too many connections",
    "The gateway, or this address, has as many connections as it may have, and each has a request under way. Nothing "
    "was done.",
    "Use connections again (keep-alive), and a pool of them. Try again after the seconds in Retry-After. The bounds "
    "are FENCEPOST_MAX_CONNECTIONS and FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS.",
    retryable=True,
)

EDGE_PROBLEM_TYPES: Final = (WRONG_HOST, CROSS_SITE, REQUEST_TOO_SLOW, HEAD_TOO_LARGE, TOO_MANY_CONNECTIONS)
"""All of them, in the order of their codes."""
