"""The Python client: `from fencepost import Client, SyncClient`. It knows the gateway by HTTP only."""

from fencepost.client.answers import Claimed, FenceState, LockState, Row, StoryEvent, Waiter
from fencepost.client.client import Client
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.elections.campaign import Campaign, Term
from fencepost.client.elections.observing import Leader
from fencepost.client.errors import (
    ApiError,
    BadRequest,
    ConstraintViolated,
    FencepostError,
    Forbidden,
    LeaseLost,
    LockHeld,
    LossReason,
    NotFound,
    OutcomeUnknown,
    RowNotFound,
    RowsNotKept,
    SealRefused,
    SourceFailed,
    SpentToken,
    StaleToken,
    StillQueued,
    TokenRequired,
    Unauthenticated,
    Unavailable,
    UnissuedToken,
    WriteFailed,
    WrongTokenSource,
)
from fencepost.client.fence_token import FenceToken
from fencepost.client.http.credentials import Token, token_from_environment, token_from_file
from fencepost.client.http.retry import Retry
from fencepost.client.keys import resource_of
from fencepost.client.leases.lease import Lease
from fencepost.client.leases.lock import Lock
from fencepost.client.problem import Problem, Superseded
from fencepost.client.queued.submit import Submit
from fencepost.client.queued.write import QueuedWrite, State
from fencepost.client.rows.batches import Verdict
from fencepost.client.sync.client import SyncClient
from fencepost.client.sync.elections import SyncCampaign, SyncTerm
from fencepost.client.sync.leases import SyncLease, SyncLock
from fencepost.client.sync.queued_write import SyncQueuedWrite
from fencepost.client.sync.submit import SyncSubmit

__all__ = [
    "ApiError",
    "BadRequest",
    "Campaign",
    "Claimed",
    "Client",
    "Clock",
    "ConstraintViolated",
    "FenceState",
    "FenceToken",
    "FencepostError",
    "Forbidden",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockHeld",
    "LockState",
    "LossReason",
    "NotFound",
    "OutcomeUnknown",
    "Problem",
    "QueuedWrite",
    "Retry",
    "Row",
    "RowNotFound",
    "RowsNotKept",
    "SealRefused",
    "SourceFailed",
    "SpentToken",
    "StaleToken",
    "State",
    "StillQueued",
    "StoryEvent",
    "Submit",
    "Superseded",
    "SyncCampaign",
    "SyncClient",
    "SyncLease",
    "SyncLock",
    "SyncQueuedWrite",
    "SyncSubmit",
    "SyncTerm",
    "SystemClock",
    "Term",
    "Token",
    "TokenRequired",
    "Unauthenticated",
    "Unavailable",
    "UnissuedToken",
    "Verdict",
    "Waiter",
    "WriteFailed",
    "WrongTokenSource",
    "resource_of",
    "token_from_environment",
    "token_from_file",
]
