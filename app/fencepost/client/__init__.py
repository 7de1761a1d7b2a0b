"""The Python client: `from fencepost import Client, SyncClient`. It knows the gateway by HTTP only."""

from fencepost.client.answers import Claimed, FenceState, LockState, Row, StoryEvent, Waiter
from fencepost.client.client import Client
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.electing import Campaign, Term
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
    SourceFailed,
    SpentToken,
    StaleToken,
    TokenRequired,
    Unavailable,
    UnissuedToken,
    WrongTokenSource,
)
from fencepost.client.keys import resource_of
from fencepost.client.lease import Lease
from fencepost.client.lock import Lock
from fencepost.client.observing import Leader
from fencepost.client.problem import Problem, Superseded
from fencepost.client.retry import Retry
from fencepost.client.sync import SyncClient
from fencepost.client.sync_electing import SyncCampaign, SyncTerm
from fencepost.client.sync_lease import SyncLease, SyncLock

__all__ = [
    "ApiError",
    "BadRequest",
    "Campaign",
    "Claimed",
    "Client",
    "Clock",
    "ConstraintViolated",
    "FenceState",
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
    "Retry",
    "Row",
    "RowNotFound",
    "SourceFailed",
    "SpentToken",
    "StaleToken",
    "StoryEvent",
    "Superseded",
    "SyncCampaign",
    "SyncClient",
    "SyncLease",
    "SyncLock",
    "SyncTerm",
    "SystemClock",
    "Term",
    "TokenRequired",
    "Unavailable",
    "UnissuedToken",
    "Waiter",
    "WrongTokenSource",
    "resource_of",
]
