"""A request to the gateway that waits for another transaction."""

from collections.abc import Awaitable, Coroutine
from typing import Any

from tests.support.racing import Race
from tests.support.use_cases import gateway_pid

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome


async def answer_after(
    race: Race, gateway: Gateway, *earlier: Awaitable[object], request: Coroutine[Any, Any, Outcome]
) -> Outcome:
    """Do what is earlier in a transaction, on `race.a`; commit once the request waits for it. Give the answer."""
    holder = await race.begin(race.a)
    for each in earlier:
        await each
    waiter = await race.waits_at(await gateway_pid(gateway), request)
    await holder.commit()
    return await waiter
