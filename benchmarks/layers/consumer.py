"""`python -m benchmarks.layers.consumer SETUP`: a consumer as many would write it. Take, UPDATE, delete.

It takes from the same log as Fencepost's, by the same functions of the database, and one other consumer has a partition
when this one has not been seen for TAKEN_OVER_MS. Between its look and its UPDATE anything may have happened.
"""

import asyncio
import json
import signal
import sys

import asyncpg

from benchmarks.layers.layers import TAKEN_OVER_MS, Setup
from benchmarks.layers.sending import UPDATE
from fencepost.server.postgres import queues
from fencepost.server.queues.log import TAKEN_BYTES

MOST = 100
IDLE_S = 0.02


async def apply_batch(connection: asyncpg.Connection, member: str) -> int:
    """Take messages, and make an UPDATE of each; returns how many there were."""
    owned = await queues.own(connection, member, TAKEN_OVER_MS, ())
    taken = await queues.take(connection, member, owned.partitions, (), MOST, TAKEN_BYTES)
    for message in taken:
        order = message.row.key.decode().removeprefix("orders/")
        await connection.execute(UPDATE, order, json.loads(message.row.value or b"")["version"])
        await queues.done(connection, [(message.row.partition, message.offset)])
    return len(taken)


async def main(setup: Setup) -> None:
    """Consume until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    connection = await asyncpg.connect(setup.database)
    while not ended.is_set():
        if not await apply_batch(connection, setup.name):
            await asyncio.sleep(IDLE_S)
    await queues.leave(connection, setup.name)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(Setup.read(sys.argv[1])))
