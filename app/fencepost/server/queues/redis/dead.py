"""Dead letters in Redis: a hash by the id of the write, a sorted set that has their order, and how many there are of
each partition.
"""

import base64
from collections.abc import Sequence

import orjson

from fencepost.server.queues.log import DeadLetter, LogUnavailableError, Message, Position
from fencepost.server.queues.redis.scripts import DROP_DEAD, LIST_DEAD, PUT_DEAD
from fencepost.server.queues.redis.server import RedisServer
from fencepost.server.queues.redis.url import QueueKeys


class RedisDeadLetters:
    """See DeadLetters in queues/log.py."""

    def __init__(self, server: RedisServer, keys: QueueKeys) -> None:
        self._server, self._keys = server, (keys.dead, keys.dead_order, keys.dead_counts)
        self._about = f"the dead letters {keys.dead}"

    async def put(self, letter: DeadLetter) -> None:
        """Add one, as durable as a message; none where one of this id is there."""
        written = _write(letter)
        values = (letter.id, repr(letter.at), written, letter.position.partition)
        await self._server.run(PUT_DEAD, self._keys, *values, about=self._about, durable=True)

    async def list(self, most: int) -> Sequence[DeadLetter]:
        if most <= 0:
            return ()
        return [
            self._read(written) for written in await self._server.run(LIST_DEAD, self._keys, most, about=self._about)
        ]

    async def get(self, letter_id: str) -> DeadLetter | None:
        written = await self._server.command("HGET", self._keys[0], letter_id, about=self._about)
        return None if written is None else self._read(written)

    async def drop(self, letter_id: str) -> bool:
        return bool(await self._server.run(DROP_DEAD, self._keys, letter_id, about=self._about))

    async def count(self) -> dict[int, int]:
        """Give their counts by partition."""
        answer: list[bytes] | dict[bytes, bytes] = await self._server.command(
            "HGETALL", self._keys[2], about=self._about
        )
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        return {int(partition): int(count) for partition, count in pairs if int(count) > 0}

    def _read(self, written: bytes) -> DeadLetter:
        try:
            return _read(written)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise LogUnavailableError(
                f"{self._server.name} has something else than a dead letter in {self._keys[0]}: {written[:60]!r}"
            ) from error


def _write(letter: DeadLetter) -> bytes:
    message = letter.message
    return orjson.dumps(
        {
            "id": letter.id,
            "reason": letter.reason,
            "partition": letter.position.partition,
            "offset": letter.position.offset,
            "at": letter.at,
            "key": _text(message.key),
            "value": None if message.value is None else _text(message.value),
            "headers": [[name, _text(value)] for name, value in message.headers],
        }
    )


def _read(written: bytes) -> DeadLetter:
    found = orjson.loads(written)
    value = found["value"]
    message = Message(
        _bytes(found["key"]),
        None if value is None else _bytes(value),
        tuple((name, _bytes(content)) for name, content in found["headers"]),
    )
    position = Position(found["partition"], found["offset"])
    return DeadLetter(found["id"], found["reason"], position, message, float(found["at"]))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(content: str) -> bytes:
    return base64.b64decode(content, validate=True)
