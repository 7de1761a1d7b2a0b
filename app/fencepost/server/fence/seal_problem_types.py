"""Kinds of errors that sealed tokens can meet. See problem_types.py."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

SEAL_REFUSED: Final = ProblemType(
    "FP041",
    403,
    "seal-refused",
    "The token's seal does not allow this write",
    "The token has a seal, and it is not one of this gateway's, or is bound to other resources, or is of another "
    "source than the table takes, or has ended. The member reason says which: unknown-key, wrong-seal, other-resource, "
    "other-source, ended. Nothing was changed.",
    "Send the token as it came with the lease, and only for what the lease is bound to: the resources that its locks "
    "are named after, that it claims, and that the request for it listed in writes. Where a seal has ended, or its key "
    "was taken away, mint new tokens: POST /v1/leases/{lease_id}/tokens.",
)
NO_SEAL_KEYS: Final = ProblemType(
    "FP042",
    503,
    "no-seal-keys",
    "The gateway has no keys for seals",
    "The table takes sealed tokens only, and this gateway has no keys, so that it can neither make a seal nor verify "
    "one. Nothing was changed.",
    "An operator gives the gateway the keys that the others have: FENCEPOST_SEAL_KEYS_FILE. `fencepost doctor` says "
    "what is wrong with them.",
    retryable=True,
)

SEAL_PROBLEM_TYPES: Final = (SEAL_REFUSED, NO_SEAL_KEYS)
"""All of them, in the order of their codes."""
