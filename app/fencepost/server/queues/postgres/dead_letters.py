"""Dead letters of the queue postgres:default: rows of fencepost.queue_dead."""

from collections.abc import Sequence

from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.queues import table_log
from fencepost.server.postgres.queues.table_log import BuriedRow, MessageRow
from fencepost.server.queues.log import DeadLetter, Message, Position
from fencepost.server.queues.postgres.errors import ask, write


class PostgresDeadLetters:
    """DeadLetters (queues/log.py) over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, letter: DeadLetter) -> None:
        """Add one; nothing where one of this id is there."""
        message = letter.message
        row = MessageRow(letter.position.partition, message.key, message.headers, message.value)
        buried = BuriedRow(letter.id, letter.reason, letter.position.offset, row, letter.at)
        await write(self._database, lambda connection: table_log.bury(connection, buried))

    async def list(self, most: int) -> Sequence[DeadLetter]:
        return [_letter(row) for row in await self._buried(most, None)]

    async def get(self, letter_id: str) -> DeadLetter | None:
        rows = await self._buried(1, letter_id)
        return _letter(rows[0]) if rows else None

    async def _buried(self, most: int, letter_id: str | None) -> Sequence[BuriedRow]:
        return await ask(self._database, lambda connection: table_log.buried(connection, most, letter_id))

    async def drop(self, letter_id: str) -> bool:
        """Remove one; whether it was there."""
        return await write(self._database, lambda connection: table_log.exhume(connection, letter_id))

    async def count(self) -> dict[int, int]:
        return await ask(self._database, table_log.count_dead)


def _letter(buried: BuriedRow) -> DeadLetter:
    row = buried.row
    position = Position(row.partition, buried.offset)
    return DeadLetter(buried.id, buried.reason, position, Message(row.key, row.value, row.headers), buried.at)
