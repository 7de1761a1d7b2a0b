"""Writers that submit to a gateway over HTTP, each write with a tag of its own, and note what they were answered."""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.robustness.queues.oracle import KEYS, Answer, Submission

from fencepost.testing.servers.processes import PATIENCE

PRODUCERS = 8
ANSWERED_WITHIN = PATIENCE  # seconds
PAUSE = 0.05  # seconds, of a writer who was refused, before it submits something else

_UNKNOWN = "FP027"
"""The gateway's own word that it does not know. Each other refusal says that nothing was queued."""


@dataclass
class Connection:
    """One HTTP connection, made anew after each error."""

    url: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def patch(self, key: str, tag: str, once: str | None) -> tuple[int, dict[str, object]]:
        """Submit a write; the status and the body. OSError, EOFError, TimeoutError: nothing is known."""
        body = json.dumps({"tag": tag})
        extra = f"Idempotency-Key: {once}\r\n" if once else ""
        request = (
            f"PATCH /v1/data/orders/{key} HTTP/1.1\r\nHost: localhost\r\nPrefer: respond-async\r\n{extra}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await self._ask(request.encode())
        except BaseException:
            self.close()
            raise

    async def _ask(self, request: bytes) -> tuple[int, dict[str, object]]:
        if self._streams is None:
            where = urlsplit(self.url)
            self._streams = await asyncio.open_connection(where.hostname, where.port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), answer

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@dataclass
class Submitters:
    """Submit until it is enough."""

    url: str
    seed: int
    enough: Callable[[], bool]
    submissions: list[Submission] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> int:
        """How many were acknowledged."""
        return self.answers["202"]

    async def submit(self, *, width: int = 8, repeat: bool = False) -> None:
        """Run PRODUCERS producers of `width` writers each. `repeat`: every other writer has Idempotency-Keys, and
        submits each write until it is acknowledged.
        """
        async with asyncio.TaskGroup() as group:
            for producer, writer in itertools.product(range(PRODUCERS), range(width)):
                group.create_task(self._write(f"p{producer}-{writer}", repeat=repeat and writer % 2 == 0))

    async def until_acknowledged(self, key: str, tag: str) -> None:
        """Submit one write, as often as it takes."""
        connection = Connection(self.url)
        try:
            await self._repeat(connection, f"once-{tag}", key, tag)
        finally:
            connection.close()

    async def _write(self, writer: str, *, repeat: bool) -> None:
        chosen, connection = random.Random(f"{self.seed}-{writer}"), Connection(self.url)
        try:
            for number in itertools.count():
                if self.enough():
                    return
                key, tag = chosen.choice(KEYS), f"{writer}-{number}"
                if repeat:
                    await self._repeat(connection, writer, key, tag)
                    continue
                answer, offset = await self._once(connection, key, tag, None)
                self.submissions.append(Submission(writer, key, tag, answer, offset))
                if answer != "acknowledged":
                    await asyncio.sleep(PAUSE)
        finally:
            connection.close()

    async def _repeat(self, connection: Connection, writer: str, key: str, tag: str) -> None:
        times, offset = 0, None
        while offset is None:
            if times:
                await asyncio.sleep(PAUSE)
            times += 1
            _, offset = await self._once(connection, key, tag, tag)
        self.submissions.append(Submission(writer, key, tag, "acknowledged", offset, repeated=times > 1))

    async def _once(self, connection: Connection, key: str, tag: str, once: str | None) -> tuple[Answer, int | None]:
        try:
            status, body = await connection.patch(key, tag, once)
        except ConnectionRefusedError:
            self.answers["refused"] += 1
            return "refused", None
        except (OSError, EOFError) as error:  # EOFError: IncompleteReadError; OSError: TimeoutError too
            self.answers[type(error).__name__] += 1
            return "unknown", None
        if status == 202:
            self.answers["202"] += 1
            return "acknowledged", int(str(body["id"]).rsplit(".", 2)[1])
        self.answers[f"{status} {body.get('code')}"] += 1
        assert status == 503, body
        return ("unknown" if body.get("code") == _UNKNOWN else "refused"), None
