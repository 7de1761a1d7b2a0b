"""Consumers, gateway, PostgreSQL and the log's servers are killed (SIGKILL) at random while many submit: each
acknowledged submission has one effect, in the order of its row, and what was refused has none. Where the log has three
servers, the two others go on to acknowledge while one is away.

FENCEPOST_STORM_MESSAGES=100000 makes it a long run, FENCEPOST_STORM_SEED repeats one.
"""

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from tests.robustness.queues.log_servers import THREE
from tests.robustness.queues.submitters import Submitters
from tests.robustness.queues.world import World, messages, world
from tests.support.violations import assert_none

from fencepost.testing.faults import killed
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import PATIENCE, eventually, wait_until
from fencepost.testing.servers.server import Server

pytestmark = pytest.mark.long("storms of queued writes")

KILLS = 6
"""How many servers are killed in a storm of the usual size; each is away for up to a second."""
USUAL = 1200


SERVED_MEANWHILE = 100
"""How many submissions are acknowledged while a server is away without which the others serve."""
IN_HAND = 20
"""How many a log of its own acknowledges while PostgreSQL is away, before a consumer that has some is killed."""


@pytest.fixture(params=["postgres", "redis", THREE])
def storm_kind(request: pytest.FixtureRequest) -> str:
    """Name each kind of log: logs that are away with their one server, and one that outlives one of three."""
    found: str = request.param
    return found


def victims(house: World) -> dict[str, Server | Postgres]:
    """Name what can be killed."""
    return {**house.consumers, **house.log.servers, "gateway": house.gateway, "postgres": house.postgres}


def kill(server: Server | Postgres, away: Callable[[], object], then: Server | None) -> None:
    """Kill a server, and start it again when `away` returns; `then` is killed before that."""
    with killed(server):
        away()
        if then is not None:
            with killed(then):
                pass  # what cannot start without the first one is started after it


def time_away(
    house: World, name: str, submitters: Submitters, total: int, chance: random.Random
) -> Callable[[], object]:
    """Give what is waited for before a server that was killed is started again."""
    more = 0
    if name in house.log.servers and house.log.spare:
        more = SERVED_MEANWHILE
    elif name == "postgres" and house.log.servers:
        more = IN_HAND
    if more:
        enough = min(submitters.acknowledged + more, total)
        what = f"submissions without {name} {submitters.answers}"
        return functools.partial(wait_until, lambda: submitters.acknowledged >= enough, within=3 * PATIENCE, what=what)
    # Nothing is to be waited for: what needs the server meets that it is away.
    return functools.partial(threading.Event().wait, chance.uniform(0, 1))


async def kill_at_random(house: World, submitters: Submitters, total: int, seed: int) -> Counter[str]:
    """Kill one server each time that so many more were acknowledged, each at least once; with PostgreSQL a consumer
    that has messages in hand.
    """
    chance, killed_so_far = random.Random(seed), Counter[str]()
    order = chance.sample(sorted(victims(house)), len(victims(house)))
    kills = max(len(order), KILLS, KILLS * total // USUAL // 4)
    for number in range(kills):

        async def far_enough(wanted: int = total * (number + 1) // (kills + 1)) -> bool:
            return submitters.acknowledged >= wanted

        await eventually(far_enough, within=60 + total / 50, what=f"more submissions {submitters.answers}")
        name = order[number] if number < len(order) else chance.choice(order)
        then = chance.choice(sorted(house.consumers)) if name == "postgres" else None
        killed_so_far.update(each for each in (name, then) if each is not None)
        away = time_away(house, name, submitters, total, chance)
        await asyncio.to_thread(kill, victims(house)[name], away, house.consumers.get(then or ""))
    return killed_so_far


async def test_whatever_is_killed_each_acknowledged_write_is_applied_once_and_in_order(
    storm_kind: str, launcher: Launcher, seed: int
) -> None:
    total = messages(USUAL)
    async with world(storm_kind, launcher=launcher, consume_here=True, statement_timeout="5") as house:
        for member in ("c1", "c2"):
            await house.consumer(member)
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit(repeat=True))
        found = f"FENCEPOST_STORM_SEED={seed}"
        try:
            deaths = await kill_at_random(house, submitters, total, seed)
            await submitting
            found = f"{found} killed: {dict(deaths)} answers: {dict(submitters.answers)}"
            await house.end(submitters)
        except Exception as error:
            error.add_note(f"{found}\n{house.logs()}")
            raise
        finally:
            submitting.cancel()
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, found, house.logs())
