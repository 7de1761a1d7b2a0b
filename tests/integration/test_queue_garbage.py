"""What a consumer makes for a message goes with the message: none of it is left in circles, which Python looks for only
now and then, among all that is in hand. That search took a quarter of a consumer's time.
"""

import gc
from collections.abc import Iterator

import pytest
from tests.support.consuming import consumed, make_tables, opened, write
from tests.support.interleave import Connect

from fencepost.gateway.writes.keyed import KeyedWrite
from fencepost.http.writes.reading import WriteRequest

MESSAGES = 20


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Keep what only a search finds, from now on; `gc.collect` puts it into this list."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_message_that_was_applied_is_gone(connect: Connect, database: str, garbage: list[object]) -> None:
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(*(write(f"orders/k{n}", body={"n": n}) for n in range(MESSAGES)))
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": MESSAGES}
        gc.collect()
        left = [type(each).__name__ for each in garbage if isinstance(each, WriteRequest | KeyedWrite)]
    assert left == []
