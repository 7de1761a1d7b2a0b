"""Tables of a run that cannot be dropped are named."""

import pytest

from fencepost.testing.servers.ports import free_port
from fencepost.torture.errors import RunFailedError
from fencepost.torture.stages.making import drop
from fencepost.torture.tables import Fenced


async def test_tables_that_cannot_be_dropped_are_named() -> None:
    url = f"postgresql://me@127.0.0.1:{free_port()}/none"
    with pytest.raises(
        RunFailedError, match=r"public\.torture_1_strict, public\.torture_1_epoch have to be dropped by hand"
    ):
        await drop(url, [Fenced("torture_1", "strict"), Fenced("torture_1", "epoch")])
