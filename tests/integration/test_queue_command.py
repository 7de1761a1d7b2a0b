"""`fencepost queue` and `fencepost source` on queues."""

import json

import asyncpg
import pytest
from tests.support.interleave import Connect

from fencepost.storage.queues import progress, table_log
from fencepost.storage.queues.progress import PartitionProgress
from fencepost.storage.queues.table_log import MessageRow
from fencepost.testing.servers.gateway import run_command

KAFKA = "kafka:orders"


@pytest.fixture
async def owner(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await progress.register(connection, KAFKA)
    again = await progress.check(connection, KAFKA, "x", [9, 4], [None, None])
    await progress.check(connection, KAFKA, "x", [9, 4], [None, None], before=again.recorded)
    told = [PartitionProgress(0, 7, 1.0, applied=5, refused=1), PartitionProgress(1, 4, None, failed=2, redelivered=3)]
    await progress.note(connection, KAFKA, 0, told)
    await progress.note(connection, KAFKA, 0, [PartitionProgress(0, 6, 1.0, applied=1)])
    return connection


@pytest.mark.usefixtures("owner")
async def test_each_queue_is_listed_with_how_far_it_is(database: str) -> None:
    lines = run_command(database, "queue").splitlines()
    header, of_kafka, of_postgres = (line.split() for line in lines)
    assert header[:3] == ["QUEUE", "PARTITIONS", "LAG"]
    assert of_kafka[:3] == [KAFKA, "2", "2"], "what was decided does not become less"
    assert of_kafka[5:] == ["6", "1", "2", "3", "-", "generation", "0"]
    assert of_postgres == ["postgres:default", "8", "0", "-", *"0000", "0", "generation", "0"]


async def test_the_log_of_the_database_is_asked(owner: asyncpg.Connection, database: str) -> None:
    await table_log.append(owner, [MessageRow(3, b"orders/1", (), None), MessageRow(3, b"orders/2", (), None)])
    shown = {each["name"]: each for each in map(json.loads, run_command(database, "queue", "--json").splitlines())}
    assert shown["postgres:default"]["lags"] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert shown[KAFKA]["partitions"][0]["end"] == 9


async def test_what_an_earlier_generation_knew_is_forgotten_and_its_counts_stay(owner: asyncpg.Connection) -> None:
    await owner.execute("SELECT fencepost.source_raise($1, 'test', 0)", KAFKA)
    await progress.note(owner, KAFKA, 0, [PartitionProgress(0, 8, 1.0, applied=1)])
    [queue] = await progress.known(owner)
    assert (queue.generation, queue.incarnation) == (1, None)
    assert [(each.decided, each.end, each.oldest_s) for each in queue.partitions] == [(None, None, None)] * 2
    assert queue.partitions[0].applied == 7
