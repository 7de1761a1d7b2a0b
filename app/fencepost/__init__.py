"""Fencepost: a fencing-token enforcing storage gateway in front of PostgreSQL.

The client's names are here too, and are imported on use: `from fencepost import Client` loads httpx and no server.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.client import (
        ApiError,
        Client,
        FencepostError,
        FenceToken,
        Forbidden,
        Job,
        Leader,
        Lease,
        LeaseLost,
        LockHeld,
        OutcomeUnknown,
        Retry,
        RowChanged,
        RowNotFound,
        RowsNotKept,
        SealRefused,
        SpentToken,
        StaleToken,
        StillQueued,
        SyncClient,
        SyncJob,
        SyncLease,
        SyncTerm,
        Term,
        Unauthenticated,
        Unavailable,
        WriteFailed,
        token_from_environment,
        token_from_file,
    )

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "Client",
    "FenceToken",
    "FencepostError",
    "Forbidden",
    "Job",
    "Leader",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "OutcomeUnknown",
    "Retry",
    "RowChanged",
    "RowNotFound",
    "RowsNotKept",
    "SealRefused",
    "SpentToken",
    "StaleToken",
    "StillQueued",
    "SyncClient",
    "SyncJob",
    "SyncLease",
    "SyncTerm",
    "Term",
    "Unauthenticated",
    "Unavailable",
    "WriteFailed",
    "__version__",
    "token_from_environment",
    "token_from_file",
]


def __getattr__(name: str) -> object:
    """Import a name of the client when it is asked for."""
    if name in __all__:
        found: object = getattr(importlib.import_module("fencepost.client"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
