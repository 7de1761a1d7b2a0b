"""What PostgreSQL answers to an operator whom it refuses."""

import asyncpg
import pytest
from tests.support.interleave import Connection
from tests.support.racing import REASON


async def refusal(connection: Connection, statement: str) -> asyncpg.PostgresError:
    """PostgreSQL's answer to a statement behind broken glass."""

    async def attempt() -> None:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
            await connection.execute(statement)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await attempt()
    return refused.value


def message(error: asyncpg.PostgresError) -> str:
    return str(getattr(error, "message", ""))
