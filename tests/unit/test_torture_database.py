"""What a worker does in the database may fail as the database does: that is no end of the worker."""

from typing import Any

import asyncpg
import pytest

from fencepost.torture.holders.database import Database


class _Broken:
    """A connection in the middle of an answer that never came."""

    terminated = False

    async def execute(self, *_: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")

    def terminate(self) -> None:
        self.terminated = True


async def test_a_lease_is_left_alone_when_the_connection_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _Broken()

    async def connect(*_: object) -> Any:
        return broken

    monkeypatch.setattr(asyncpg, "connect", connect)
    await Database("postgresql://h/db", "torture_1").expire("7")
    assert broken.terminated
