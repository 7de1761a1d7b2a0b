"""Which lines of a batch wait for which, which are not done because an earlier one is to be sent again, and when there
is room for a line's verdict.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from fencepost.server.gateway.write import ConflictKey, is_spelled_so, place_of
from fencepost.server.http.batch import MOST_BYTES, Behind, Order, Turn, Window

ORDER_1, ORDER_2, ORDERS = (ConflictKey("orders", "orders", row) for row in ("1", "2", None))
ITEM, ITEMS = ConflictKey("orders", "items", "1"), ConflictKey("orders", "items", None)


async def begun(turns: dict[str, Turn]) -> str:
    """Name the turns that have come."""
    tasks = {name: asyncio.ensure_future(turn.come()) for name, turn in turns.items()}
    for _ in range(10):
        await asyncio.sleep(0)
    come = "".join(name for name, task in tasks.items() if task.done())
    for task in tasks.values():
        task.cancel()
    return come


async def test_lines_under_one_key_wait_for_each_other_whatever_they_concern() -> None:
    order = Order()
    lines = (
        (ConflictKey("a", "a", "1"), "key"),
        (ConflictKey("b", "b", "1"), "key"),
        (ConflictKey("c", "c", "1"), "other"),
    )
    turns = {str(number): order.enter(number, *line) for number, line in enumerate(lines)}
    assert await begun(turns) == "02"
    turns["0"].decided(again=False)
    assert await begun(turns) == "012"


def test_a_table_that_is_not_known_has_one_place_whatever_it_is_called() -> None:
    catalog: Any = SimpleNamespace(find=lambda _: None)
    one, other = (place_of(catalog, SimpleNamespace(table=name)) for name in ("t", "public.t"))  # type: ignore[arg-type]
    assert one == other


@pytest.mark.parametrize(
    ("text", "spelled"), [("-0", False), ("0", False), ("7", True), ('"-0"', True), ("1.0", False)]
)
def test_whose_text_python_does_not_know_is_asked_of_postgresql(text: str, spelled: bool) -> None:
    assert is_spelled_so(orjson.loads(text)) is spelled


@pytest.mark.parametrize(
    ("failed", "later", "behind"),
    [
        (ORDER_1, ORDER_1, True),
        (ORDER_1, ORDER_2, False),
        (ORDER_1, ORDERS, True),
        (ORDERS, ORDER_2, True),
        (ORDERS, ITEM, False),
        (ITEMS, ITEM, True),
    ],
)
async def test_what_an_earlier_line_concerns_that_is_to_be_sent_again_is_not_done(
    failed: ConflictKey, later: ConflictKey, behind: bool
) -> None:
    order = Order()
    first, second = order.enter(1, failed, None), order.enter(2, later, None)
    coming = asyncio.ensure_future(second.come())
    first.decided(again=True)
    if behind:
        with pytest.raises(Behind) as raised:
            await coming
        assert raised.value.number == 1
    else:
        await coming
    second.decided(again=behind)
    assert order.again == (2 if behind and later.row != failed.row else 1), "of each row once"


async def test_a_key_of_a_line_that_is_to_be_sent_again_is_not_used_by_a_later_one() -> None:
    order = Order()
    order.enter(1, ORDER_1, "key").decided(again=True)
    order.enter(2, ORDER_1, "key").decided(again=True)
    with pytest.raises(Behind, match="1"):
        await order.enter(3, ITEM, "key").come()


async def test_a_line_is_begun_when_there_is_room_for_its_verdict_or_it_is_the_first() -> None:
    window = Window(100, lambda _size: True)
    first, *others = [window.enter(10) for _ in range(4)]
    assert await window.begin(others[0])
    window.decide(others[0], b"x" * (MOST_BYTES - 1000), begun=True)
    waits = asyncio.ensure_future(window.begin(others[1]))
    await asyncio.sleep(0)
    assert not waits.done(), "another verdict like that would not fit"
    assert await window.begin(first)
    window.decide(first, b"x", begun=True)
    assert [len(entry.verdict or b"") for entry in await window.next()] == [1], "a long one is sent by itself"
    window.sent([first])
    await asyncio.sleep(0)
    assert not waits.done()
    window.sent(await window.next())
    assert await waits, "it is the first now"


async def test_a_batch_goes_on_with_little_where_there_is_no_room_for_more() -> None:
    room: list[int] = []
    window = Window(100, lambda size: bool(room) and room.pop() >= size)
    lines = []
    while window.lets_in():
        lines.append(window.enter(4000))
    assert len(lines) == 9, "with what a line takes in memory beside its own"
    coming = asyncio.ensure_future(window.room())
    await asyncio.sleep(0)
    assert not coming.done()
    assert not window.widens(), "a line that is long by itself is not taken now"
    window.decide(lines[0], b"{}")
    window.sent(await window.next())
    await coming
    room.append(MOST_BYTES)
    while window.lets_in():
        lines.append(window.enter(4000))
    assert len(lines) == 101
