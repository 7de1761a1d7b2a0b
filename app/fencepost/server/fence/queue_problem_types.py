"""Kinds of errors that queued writes can meet. See problem_types.py."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

QUEUE_UNAVAILABLE: Final = ProblemType(
    "FP026",
    503,
    "queue-unavailable",
    "The queue cannot be reached",
    "The write was to be queued, and its log could not be reached in time, or too few of its replicas could. The write "
    "is not in the queue, and will not be. Or it was asked what became of a write, and only the log knows.",
    "Try again after the seconds in Retry-After.",
    retryable=True,
)
SUBMISSION_UNKNOWN: Final = ProblemType(
    "FP027",
    503,
    "submission-unknown",
    "It is not known whether the write was queued",
    "The log did not acknowledge the write in time. It may be in the queue, and then it will be applied.",
    "Repeat the same request with the same Idempotency-Key, if it had one: if both are in the queue, at most one of "
    "them is applied. Without: read the row before you submit the write again.",
    retryable=True,
)
QUEUE_FAILED: Final = ProblemType(
    "FP028",
    502,
    "queue-failed",
    "The queue refused the write",
    "The log answered, and would not take the write: it is larger than the log's settings allow, the gateway lacks a "
    "privilege there, or the log is gone. The write is not in the queue.",
    "The detail names what is in the way. Trying again does not help before that is mended.",
)
WRITE_NOT_FOUND: Final = ProblemType(
    "FP029",
    404,
    "write-not-found",
    "There is no such queued write, or its result was forgotten",
    "No write with this id is in the queue, and there is no result of one. Either there never was one, or it was "
    "decided so long ago that its result was forgotten: the detail says what is known.",
    "Take the id from the answer 202, as it is. Results are kept for as long as FENCEPOST_IDEMPOTENCY_RETENTION sets: "
    "ask in that time. The row itself shows what it is now.",
)
RESOURCE_STOPPED: Final = ProblemType(
    "FP030",
    409,
    "resource-stopped",
    "An earlier queued write of the resource is a dead letter",
    "The consumer runs with --stop-resources: when a queued write of a resource becomes a dead letter, those after it "
    "are not applied, but become dead letters as well, until an operator retries or drops the first. This is what "
    "such a write came to. Nothing was changed.",
    "The detail names the first. `fencepost dead show` says what is wrong with it, and `fencepost dead retry QUEUE "
    "--resource RESOURCE` appends it and all that wait behind it, in their order.",
)

TOO_MANY_LETTERS: Final = ProblemType(
    "FP048",
    503,
    "too-many-letters",
    "Too many queued writes have failed",
    "The write was to be queued. Writes that were queued before and failed are kept as dead letters until an operator "
    "retries or drops them, and those of the caller, or of all callers, have as many bytes as the operator allows. The "
    "write is not in the queue.",
    "An operator looks at the letters: `fencepost dead list QUEUE` says why the writes have failed. Then the same "
    "request is taken again.",
    retryable=True,
)

QUEUE_PROBLEM_TYPES: Final = (
    *(QUEUE_UNAVAILABLE, SUBMISSION_UNKNOWN, QUEUE_FAILED, WRITE_NOT_FOUND, RESOURCE_STOPPED),
    TOO_MANY_LETTERS,
)
"""All of them, in the order of their codes."""
