"""A worker process of a run: `python -m fencepost.testing.torture.worker`. Its assignment comes on standard input.

It works until standard input is closed, which also happens when its parent ends; operations that have begun are ended
first. What it does is in its own part of the history: each event is written before the request is sent, so a worker
that is killed has recorded everything that it may have done.
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from fencepost.testing.history import Recorder
from fencepost.testing.torture.assignment import Assignment, Tally
from fencepost.testing.torture.holders import Actor, HolderDatabase
from fencepost.testing.torture.workloads import WORKLOADS, Workload


async def work(assignment: Assignment, recorder: Recorder, tally: Tally, stop: asyncio.Event) -> None:
    """Play the workload with all actors until `stop`."""
    workload = WORKLOADS[assignment.workload]
    url = assignment.database_url
    database = None if url is None else HolderDatabase(url, assignment.prefix)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(assignment.tasks):
                actor = Actor(number, assignment, recorder, tally)
                group.create_task(_play(workload, actor, database, stop))
    finally:
        if database is not None:
            await database.close()


async def _play(workload: Workload, actor: Actor, database: HolderDatabase | None, stop: asyncio.Event) -> None:
    player = workload.play(actor, database)
    try:
        while not stop.is_set():
            await player.turn()
        await player.finish()
    finally:
        actor.close()


async def _run() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    assignment = Assignment.from_json(await reader.readline())
    stop, tally = asyncio.Event(), Tally(Path(assignment.tally))
    with Recorder(assignment.part) as recorder:
        async with asyncio.TaskGroup() as group:
            worked = group.create_task(work(assignment, recorder, tally, stop))
            watched = group.create_task(_closed(reader, stop))
            worked.add_done_callback(lambda _: watched.cancel())
    tally.close()


async def _closed(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await reader.read()
    stop.set()


if __name__ == "__main__":
    uvloop.run(_run())
