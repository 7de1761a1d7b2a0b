"""A member that takes from a log and decides nothing, for tests that kill or pause it.

It prints a line of JSON for each batch that it took, with the partitions and offsets, and one at each change of its
partitions. `python -m tests.conformance.queues.member BENCH URL NAME`
"""

import asyncio
import json
import sys

from tests.conformance.queues.benches import log_of

from fencepost.server.queues.log import LogUnavailableError


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(bench: str, url: str, name: str) -> None:
    log = log_of(bench, url)
    await log.open()
    consumer = log.consumer(name, lambda lost: say({"lost": sorted(lost)}))
    consumer.begin(1)
    had: frozenset[int] = frozenset()
    while True:
        try:
            received = await consumer.take(100, 0.1)
        except LogUnavailableError:  # it was paused, and what it asked for took too long
            continue
        if consumer.partitions != had:
            had = consumer.partitions
            say({"partitions": sorted(had)})
        if received:
            say({"taken": [(each.position.partition, each.position.offset) for each in received]})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
