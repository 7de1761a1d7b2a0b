"""`protect --queue`: a table that takes all its writes by a queue, and how it changes over (R12)."""

from typing import Any

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.racing import outcome

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import queues, sources

QUEUE = "kafka:Orders.eu-1"
ABOVE = 1 << 48


@pytest.fixture
async def owner(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await connection.execute("SET search_path = public; CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)")
    return connection


async def look(connection: asyncpg.Connection, *ends: int) -> None:
    """Let the queue's log have got so far."""
    nothing = (None,) * len(ends)
    again = await queues.check(connection, QUEUE, "x", ends, nothing)
    await queues.check(connection, QUEUE, "x", ends, nothing, before=again.recorded)


async def insert(connection: asyncpg.Connection, token: int, key: int = 1) -> str:
    async def write() -> str:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
            await connection.execute(f"INSERT INTO t VALUES ({key}) ON CONFLICT (id) DO UPDATE SET n = t.n + 1")
        return "written"

    return await outcome(write())


async def source_of(connection: asyncpg.Connection) -> str:
    return str(await connection.fetchval("SELECT source FROM fencepost.protected"))


async def generation(connection: asyncpg.Connection) -> int:
    return next(each.generation for each in await sources.list_known(connection) if each.name == QUEUE)


async def test_a_table_takes_positions_of_its_queue(owner: asyncpg.Connection) -> None:
    """It need not have been registered, and only what the log has reached is a token."""
    await protect(owner, "t", queue=QUEUE)
    assert await source_of(owner) == QUEUE
    assert await insert(owner, 1) == "FP018"
    await look(owner, 3, 5)
    assert await insert(owner, 5) == "written"
    assert await insert(owner, 4) == "FP409"
    assert await insert(owner, 6) == "FP018"
    await protect(owner, "t", rule="epoch")
    assert await source_of(owner) == QUEUE, "what is not given stays"
    assert await insert(owner, 5) == "written"


async def test_what_a_queues_table_cannot_have_is_refused(owner: asyncpg.Connection) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"source": "builtin"}, "--queue and --source exclude each other"),
        ({"scope": "account/{n}"}, "--queue and --scope exclude each other"),
        ({"verify": True}, "--queue and --verify exclude each other"),
        ({"max_token": 5, "max_jump": 5}, "--queue and --max-token, --max-jump exclude each other"),
        ({"queue": "kafka"}, "a queue is postgres:default, kafka:TOPIC or redis:STREAM"),
        ({"queue": "postgres:other"}, "a queue is postgres:default, kafka:TOPIC or redis:STREAM"),
        ({"queue": None, "source": QUEUE}, f"a queue orders writes and is no lock: --queue {QUEUE}"),
    )
    for given, message in cases:
        with pytest.raises(ProtectError, match=message):
            await protect(owner, "t", **{"queue": QUEUE, **given})
        assert await owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0, given
    await protect(owner, "t", queue=QUEUE)
    for given, _ in cases[1:4]:
        with pytest.raises(ProtectError):  # nor later
            await protect(owner, "t", **given)


async def test_a_table_of_a_scope_leaves_it_first(owner: asyncpg.Connection) -> None:
    await protect(owner, "t", scope="account/{n}")
    with pytest.raises(ProtectError, match="--no-scope"):
        await protect(owner, "t", queue=QUEUE)
    await protect(owner, "t", queue=QUEUE, scope="")
    assert await source_of(owner) == QUEUE


async def marked(owner: asyncpg.Connection, mark: int) -> None:
    """Protect the table for holders of locks, and let one of them write."""
    await protect(owner, "t")
    assert await insert(owner, mark) == "written"


async def test_a_queue_that_is_not_in_use_begins_above_the_marks_of_holders(owner: asyncpg.Connection) -> None:
    await marked(owner, 500)
    await protect(owner, "t", queue=QUEUE)
    assert await generation(owner) == 1
    await look(owner, 1, 1)
    assert await insert(owner, ABOVE + 1) == "written"


async def test_a_queue_in_use_needs_a_new_generation_where_a_position_may_be_below_a_mark(
    owner: asyncpg.Connection,
) -> None:
    """Its highest token is above the mark; that of the next message of partition 0 is not."""
    await queues.register(owner, QUEUE)
    await look(owner, 20, 1000)
    await marked(owner, 500)
    with pytest.raises(asyncpg.PostgresError, match="which is in use") as refused:
        await protect(owner, "t", queue=QUEUE)
    assert f"fencepost source raise {QUEUE} --above 500" in (refused.value.hint or "")
    assert await sources.raise_source(owner, QUEUE, "t takes its writes by it", 500) == 1
    await protect(owner, "t", queue=QUEUE)
    await look(owner, 21, 1000)
    assert await insert(owner, ABOVE + 21) == "written"


async def test_a_queue_of_which_every_partition_is_past_the_marks_takes_the_table_as_it_is(
    owner: asyncpg.Connection,
) -> None:
    await queues.register(owner, QUEUE)
    await look(owner, 500, 1000)
    await marked(owner, 500)
    await protect(owner, "t", queue=QUEUE)
    assert await generation(owner) == 0
    await look(owner, 501, 1000)
    assert await insert(owner, 501) == "written"


async def test_a_table_goes_back_to_a_lock_service_above_the_queues_positions(owner: asyncpg.Connection) -> None:
    await protect(owner, "t", queue=QUEUE)
    await look(owner, 9)
    assert await insert(owner, 9) == "written"
    await sources.register(owner, "redis", "redis", "source", verifies=True)
    await protect(owner, "t", source="redis")
    now = next(each for each in await sources.list_known(owner) if each.name == "redis")
    assert now.generation == 1
    await sources.record_verified(owner, "redis", ABOVE + 1)
    assert await insert(owner, 10) == "FP409"
    assert await insert(owner, ABOVE + 1) == "written"


async def test_the_comparison_is_with_the_lowest_position(owner: asyncpg.Connection) -> None:
    """The test above fails where only the highest one counts."""
    function = "fencepost.source_beyond(text, bigint, boolean)"
    definition = await owner.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert "min(u.x)" in definition
    await owner.execute(definition.replace("min(u.x)", "max(u.x)"))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_queue_in_use_needs_a_new_generation_where_a_position_may_be_below_a_mark(owner)
