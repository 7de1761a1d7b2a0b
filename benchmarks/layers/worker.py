"""`python -m benchmarks.layers.worker SETUP`: events are delivered to it over a socket, and it passes them on.

With a queue it answers when the event is in the queue. Without one it answers at once, and writes in the background:
else each delivery would take as long as the work.
"""

import asyncio
import json
import random
import signal
import sys

from benchmarks.layers.layers import Event, Setup
from benchmarks.layers.redis_lock import Locks
from benchmarks.layers.sending import Sender, sender

WORK_S = 0.03
"""The longest that the work of one event takes, between the lock and the write."""


class Worker:
    """One process's share of the deliveries."""

    def __init__(self, setup: Setup, sending: Sender) -> None:
        self._queue = setup.layers.queue
        self._locks = Locks(setup.redis, setup.name, on=setup.layers.lock)
        self._sending = sending
        self._random = random.Random(f"{setup.seed} {setup.name}")  # noqa: S311 - no secret
        self._background: set[asyncio.Task[None]] = set()

    async def delivered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one event, and answer `ok` when the source need not deliver it again."""
        line = await reader.readline()
        if not line:  # it was asked whether it listens
            writer.close()
            return
        event = Event(**json.loads(line))
        if self._queue:
            await self._pass_on(event)
        else:
            task = asyncio.create_task(self._pass_on(event))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        writer.write(b"ok\n")
        writer.close()

    async def _pass_on(self, event: Event) -> None:
        work = self._random.uniform(0, WORK_S)
        if not self._queue:  # the background's tasks begin when they begin
            await asyncio.sleep(self._random.uniform(0, WORK_S))
        async with self._locks.held(event) as token:
            if await self._locks.is_done(event):
                return
            await asyncio.sleep(work)
            await self._locks.count_write()
            await self._sending.send(event, token)
            await self._locks.note(event)

    async def close(self) -> None:
        """Finish what is under way."""
        await asyncio.gather(*self._background)
        await self._sending.close()
        await self._locks.close()


async def main(setup: Setup) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    worker = Worker(setup, await sender(setup))
    server = await asyncio.start_unix_server(worker.delivered, setup.socket)
    await ended.wait()
    server.close()
    await worker.close()


if __name__ == "__main__":
    asyncio.run(main(Setup.read(sys.argv[1])))
