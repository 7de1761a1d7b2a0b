"""R5's loop, where it ends."""

from collections.abc import Sequence
from typing import Any, NoReturn

import asyncpg
import pytest

from fencepost.server.fence.token import Token
from fencepost.server.gateway.rounds import ROUNDS, Answer, Verdict, decide_alone
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.group_commit import AGAIN, ALONE
from fencepost.server.postgres.row_sql import RowWrite


class Unreachable:
    """A row that is never reached, and that cannot be asked about in the end."""

    table: Any = None
    creates = False
    rounds = 0

    async def write(self, *_: object) -> list[Answer]:
        self.rounds += 1
        return [ALONE]

    async def ask(self, *_: object) -> Sequence[Verdict]:
        return [AGAIN]

    async def create(self, *_: object) -> NoReturn:
        raise NotImplementedError

    async def never_reached(self, *_: object) -> NoReturn:
        raise asyncpg.SerializationError("the last question")


class Idle:
    """A connection without a transaction."""

    def is_in_transaction(self) -> bool:
        return False


async def test_an_error_of_the_last_question_is_one_of_storage() -> None:
    steps, connection = Unreachable(), Idle()
    with pytest.raises(RefusedError, match="the last question"):
        await decide_alone(connection, steps, RowWrite(("k",), Token(1)))  # type: ignore[arg-type]
    assert steps.rounds == ROUNDS
