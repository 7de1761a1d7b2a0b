"""Bugs of group commit, and of when a write is answered (postgres/batches, gateway/writes)."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tests.torture.bugs.marks import ENTER_EACH
from tests.torture.bugs.settings import ROWS, SCOPES
from tests.torture.planted import Line, Planted, swap

from fencepost.server.gateway import keyed
from fencepost.server.gateway.keyed import Batched
from fencepost.server.postgres import group_commit
from fencepost.server.postgres.connection import Connection


def _answer_before_commit() -> None:
    async def broken(queue: Any, connection: Connection, _behind: Any, batch: Sequence[Any]) -> None:
        async with connection.transaction():
            answers = await queue.run(connection, [waiting.write for waiting in batch])
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
            await asyncio.sleep(0.01)  # as long as a flush to a disk takes

    swap(group_commit, "_run_batch", broken)


def _answers_are_shifted() -> None:
    async def broken(queue: Any, connection: Connection, behind: Any, batch: Sequence[Any]) -> None:
        answers = await queue.run(connection, [waiting.write for waiting in batch])
        behind.require_replicated()
        for waiting, answer in zip(batch, [*answers[1:], *answers[:1]], strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    swap(group_commit, "_run_batch", broken)


def _neighbours_share_a_scope() -> None:
    """And a neighbour that has entered it in this transaction lets others pass as its own."""

    def broken(write: Batched) -> Any:
        if write.once is not None:
            yield ("key", write.once.key)

    swap(keyed, "_clashes", broken)


BUGS: Final = [
    Planted("answer before commit", "register", ROWS, gateway=_answer_before_commit),
    Planted("a batch's answers are shifted by one", "register", ROWS, gateway=_answers_are_shifted),
    Planted(
        "neighbours in a batch share a scope",
        "register",
        SCOPES,
        (
            Line(
                ENTER_EACH,
                "AND fencepost.is_own_write(k.xmin)) THEN\n        verdict := 'busy';",
                "AND fencepost.is_own_write(k.xmin)) THEN\n        verdict := 'entered';",
            ),
        ),
        gateway=_neighbours_share_a_scope,
    ),
]
