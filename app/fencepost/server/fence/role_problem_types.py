"""The errors of requests whose caller has a role of the database."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

ROLE_NOT_ALLOWED: Final = ProblemType(
    "FP043",
    403,
    "role-not-allowed",
    "The gateway does not act as this role",
    "The caller's token or key names a role of the database, and the gateway does not act as that one: it is not among "
    "the roles that the operator lists, its login may not take it, or it is one that no caller gets, such as a "
    "superuser or the owner of the schema fencepost. Nothing was sent to the database as that role.",
    "Use a token with a role that is allowed. An operator allows one by FENCEPOST_ROLES, where that is set, and by "
    "GRANT role TO the gateway's login.",
)
QUEUED_AS_ROLE: Final = ProblemType(
    "FP044",
    403,
    "queued-as-role",
    "A write as a role cannot be queued",
    "The write would be put into a queue, and the caller's token or key names a role of the database. A message says "
    "whose write it is, signed by the gateway, and this gateway has no keys to sign with. Without that the write would "
    "be applied as the consumer's own login, which may do more than the role. Nothing was written.",
    "An operator gives gateways and consumers keys: FENCEPOST_SEAL_KEYS_FILE. Or send the write without Prefer: "
    "respond-async; a table whose tokens are the positions of a queue takes no others.",
)

ROLE_PROBLEM_TYPES: Final = (ROLE_NOT_ALLOWED, QUEUED_AS_ROLE)
"""All of them, in the order of their codes."""
