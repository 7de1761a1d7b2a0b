"""Two processes that take under one name: one of them goes on, and the other says that there are two."""

import asyncio

from tests.conformance.queues.conftest import PARTITIONS, Another, Join, Member, message

from fencepost.queues.log import Log, LogConfigError, LogUnavailableError
from fencepost.testing.servers.waiting import PATIENCE, eventually


async def refused(member: Member) -> str | None:
    """Take once, and return what is said of the member's name, if anything is."""
    try:
        await member.take(wait_s=0.05)
    except LogConfigError as error:
        return str(error)
    except LogUnavailableError:  # Kafka ends the connection of one of them before it is known why
        return None
    return None


async def test_of_two_with_one_name_one_takes_and_the_other_says_that_there_are_two(
    log: Log, another: Another, join: Join
) -> None:
    older = join("a")
    await older.has(PARTITIONS)
    younger = join("a", await another())
    said: dict[str, str | None] = {}

    async def one_is_refused() -> bool:
        said["older"], said["younger"] = await asyncio.gather(refused(older), refused(younger))
        return any(said.values())

    await eventually(one_is_refused, within=2 * PATIENCE, what="which one is refused")
    (sentence,) = filter(None, said.values())
    assert "another process takes as member a: give each its own --member" in sentence
    going_on, other = (younger, older) if said["older"] else (older, younger)
    assert other.consumer.partitions == frozenset()
    await log.append(message("orders/1"))

    async def taken() -> bool:
        assert await refused(going_on) is None
        return bool(going_on.taken)

    await eventually(taken, within=2 * PATIENCE, what="a message for the one that goes on")
