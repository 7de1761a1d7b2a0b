"""A caller whose writes wait for locked rows leaves turns, and places of those that wait, to others."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from tests.support.asking import asked_by
from tests.support.interleave import Connect
from tests.support.racing import Race
from tests.support.use_cases import keyed, open_gateway, patch, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome, Turns
from fencepost.testing.servers.processes import PATIENCE, eventually

LOCK = "SELECT FROM orders WHERE order_id = $1 FOR UPDATE"
LONG = 4 * PATIENCE


def patches(gateway: Gateway, who: str, keys: Sequence[str], first: int = 40) -> list[asyncio.Task[Outcome]]:
    return [asked_by(who, patch(gateway, keyed(key, first + at, n=1))) for at, key in enumerate(keys)]


async def wait_for_turns(gateway: Gateway, many: int) -> None:
    async def so_many() -> bool:
        return gateway.turns.waiting.count == many

    await eventually(so_many, what=f"{many} writes whose rows are locked")


async def test_whose_writes_wait_for_a_row_leaves_room_for_others_to_wait(race: Race, connect: Connect) -> None:
    other = await connect()
    anns, bobs = race.a.transaction(), other.transaction()
    await anns.start()
    await bobs.start()
    await race.a.execute(LOCK, "a")
    await other.execute(LOCK, "b")
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=LONG) as opened:
        gateway = replace(opened, turns=Turns(at_once=4, wait=LONG, most_waiting=4))
        asked = patches(gateway, "ann", "aaa")
        await wait_for_turns(gateway, 3)
        (late,) = patches(gateway, "ann", "a", first=50)
        refused = await asyncio.wait_for(late, PATIENCE)
        assert isinstance(refused, Problem)
        assert (refused.http_status, refused.retry_after) == (503, 1)
        assert "3 of ann already (three quarters of FENCEPOST_MAX_WAITING)" in refused.detail
        (bob,) = patches(gateway, "bob", "b")
        await wait_for_turns(gateway, 4)
        await bobs.commit()
        assert result_of(await asyncio.wait_for(bob, PATIENCE)) == "ok"
        assert not any(each.done() for each in asked)
        await anns.commit()
        await asyncio.gather(*asked)
        assert gateway.turns.waiting.count == len(gateway.turns) == 0


async def test_whose_writes_wait_for_rows_leaves_a_turn_to_others(race: Race, connect: Connect) -> None:
    """Also at a row that a write of the same caller would wait for if it had a turn."""
    other = await connect()
    anns, bobs = race.a.transaction(), other.transaction()
    await anns.start()
    await bobs.start()
    for key in "ab":
        await race.a.execute(LOCK, key)
    await other.execute(LOCK, "c")
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=LONG) as opened:
        gateway = replace(opened, turns=Turns(at_once=2, wait=LONG))
        asked = patches(gateway, "ann", "a")
        await wait_for_turns(gateway, 1)
        asked += patches(gateway, "ann", "bc")
        await wait_for_turns(gateway, 3)
        (bob,) = patches(gateway, "bob", "c", first=50)
        await wait_for_turns(gateway, 4)
        await bobs.commit()
        assert result_of(await asyncio.wait_for(bob, PATIENCE)) == "ok"
        assert not any(each.done() for each in asked)
        await anns.commit()
        assert [result_of(each) for each in await asyncio.gather(*asked)] == ["ok", "ok", "FP001"]
        assert gateway.turns.waiting.count == len(gateway.turns) == 0
