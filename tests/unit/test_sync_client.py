"""The synchronous client's calls are those of the asynchronous one: tools/sync_client.py has written them."""

import inspect

import pytest
from tools.sync_client import BY_HAND, CLIENT, FILES, INTERNAL, text_of

from fencepost.client import (
    Client,
    Lease,
    QueuedWrite,
    Submit,
    SyncClient,
    SyncLease,
    SyncQueuedWrite,
    SyncSubmit,
    SyncTerm,
    Term,
)


@pytest.mark.parametrize("file", FILES)
def test_what_is_committed_is_what_the_tool_writes(file: str) -> None:
    assert (CLIENT / file).read_text("utf-8") == text_of(file), "run `make format`"


MIRRORED = [
    (Client, SyncClient),
    (Lease, SyncLease),
    (Term, SyncTerm),
    (Submit, SyncSubmit),
    (QueuedWrite, SyncQueuedWrite),
]


@pytest.mark.parametrize(("mirrored", "by"), MIRRORED)
def test_every_public_name_has_its_counterpart(mirrored: type, by: type) -> None:
    wanted = {name for name in dir(mirrored) if not name.startswith("_")} | inspect.get_annotations(mirrored).keys()
    missing = {name for name in wanted - INTERNAL if not name.startswith("_") and not hasattr(by, name)}
    assert missing <= {"aclose", "lost"}, "close and wait_lost are theirs"
    assert missing <= BY_HAND
