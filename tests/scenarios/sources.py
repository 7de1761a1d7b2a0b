"""As races.py: a lock service's generation is raised while others write (R12). Only PostgreSQL's part is shown."""

from typing import Literal, TypeAlias

from asyncpg.transaction import Transaction
from tests.support.interleave import Connect, Connection
from tests.support.racing import ISSUED, Race, open_race, outcome

from fencepost.server.fence.token import Rule
from fencepost.server.postgres import queues, sources
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.sources import KnownSource

SOURCE = "redis"
FIRST = 1 << 48
"""The first number of generation 1, which counts as issued."""

Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "repeatable_read", "serializable")


async def open_source_race(connect: Connect, dsn: str, rule: Rule) -> Race:
    operator = await connect()
    if is_queue(SOURCE):
        await queues.register(operator, SOURCE)
    else:
        await sources.register(operator, SOURCE, "redis", "source", verifies=True)
    await operator.close()
    race = await open_race(connect, dsn, rule, source=SOURCE)
    await issue(race.observer, ISSUED)
    return race


async def issue(connection: Connection, token: int) -> None:
    """Let the source have issued this token and all below."""
    await sources.record_verified(connection, SOURCE, token)


async def raise_generation(connection: Connection) -> None:
    assert await sources.raise_source(connection, SOURCE, "test") == 1


async def begun(connection: Connection, isolation: Isolation, token: int) -> Transaction:
    """Begin a transaction of direct SQL that has its snapshot and its token."""
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    await connection.execute("SELECT FROM public.orders")
    await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
    return transaction


VERBS = {
    "update": "UPDATE public.orders SET status = 'zombie' WHERE order_id = 'k'",
    "column": "UPDATE public.orders SET status = 'zombie', last_fence_token = {} WHERE order_id = 'k'",
    "insert": "INSERT INTO public.orders (order_id) VALUES ('new')",
    "delete": "DELETE FROM public.orders WHERE order_id = 'k'",
}


async def bounds(race: Race) -> KnownSource:
    """Return where the source is. Not `source_state`: of some kinds that says how far one lock's numbers are."""
    [known] = await sources.list_known(race.observer)
    return known


async def granted(race: Race) -> int:
    """Let the source have issued one more token of its present generation, and return it."""
    token = (await bounds(race)).issued + 1
    await issue(race.observer, token)
    return token


async def a_transaction_from_before_a_bump_is_refused_after_it(race: Race) -> None:
    """Whatever its isolation level and verb: its snapshot does not know of the new generation."""
    await race.insert(race.a, "k", 30)
    for isolation in ISOLATIONS:
        for verb, sql in VERBS.items():
            token = await granted(race)
            transaction = await begun(race.a, isolation, token)
            if verb == "column":
                await race.a.execute("RESET fencepost.token")
            await sources.raise_source(race.observer, SOURCE, f"{isolation} {verb}")
            assert await outcome(race.a.execute(sql.format(token))) == "FP409", (isolation, verb)
            await transaction.rollback()
    assert (await race.row("k") or {})["status"] == "new"


async def a_claim_from_before_a_bump_is_refused_after_it(race: Race) -> None:
    for isolation in ISOLATIONS:
        token = await granted(race)
        transaction = await begun(race.a, isolation, token)
        await sources.raise_source(race.observer, SOURCE, isolation)
        assert await outcome(race.claim_absent(race.a, "absent", token)) == "FP409", isolation
        await transaction.rollback()
        assert await race.recorded("absent") is None


async def a_token_that_is_granted_after_the_snapshot_passes(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    for number, isolation in enumerate(ISOLATIONS, 1):
        token = ISSUED + number
        transaction = await begun(race.a, isolation, token)
        await issue(race.observer, token)
        assert await outcome(race.a.execute(VERBS["update"])) == "UPDATE 1", isolation
        await transaction.commit()
        assert await race.live_mark("k") == token


async def a_bump_waits_for_a_write_under_way(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    writer = await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    raising = await race.waits(race.b, raise_generation(race.b))
    await writer.commit()
    await raising
    assert await race.live_mark("k") == 40
    assert await outcome(race.update(race.a, "k", 41)) == "FP409"


async def a_bump_waits_for_a_claim_under_way(race: Race) -> None:
    claimer = await race.begin(race.a)
    assert await race.claim_absent(race.a, "absent", 40) is None
    raising = await race.waits(race.b, raise_generation(race.b))
    await claimer.commit()
    await raising
    assert await race.recorded("absent") == (40, True)


async def a_write_waits_for_a_bump_under_way_and_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    raising = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.source_raise($1, 'test', 0)", SOURCE)
    write = await race.waits(race.a, outcome(race.update(race.a, "k", 40)))
    insert = await race.waits(race.c, outcome(race.insert(race.c, "other", 40)))
    await raising.commit()
    assert (await write, await insert) == ("FP409", "FP409")


async def what_was_issued_is_known_although_its_record_is_rolled_back(race: Race) -> None:
    """The service has handed the token out. A backup that is restored gives it again, and that must show."""
    recording = await race.begin(race.b)
    await issue(race.b, ISSUED + 5)
    await recording.rollback()
    assert (await bounds(race)).issued == ISSUED + 5
    await issue(race.observer, ISSUED + 1)
    assert (await bounds(race)).issued == ISSUED + 5, "and it never falls"


async def a_new_generation_begins_above_the_old_one(race: Race) -> None:
    await raise_generation(race.observer)
    state = await bounds(race)
    assert (state.generation, state.issued) == (1, FIRST)
    [known] = await sources.list_known(race.observer)
    assert known.describe() == "generation 1, nothing issued yet"
    assert await sources.raise_source(race.observer, SOURCE, "above", (7 << 48) + 3) == 8
    await issue(race.observer, (7 << 48) + 9)
    assert (await bounds(race)).issued == 8 << 48, "of another generation"


SCENARIOS = [
    a_transaction_from_before_a_bump_is_refused_after_it, a_claim_from_before_a_bump_is_refused_after_it,
    a_token_that_is_granted_after_the_snapshot_passes, a_bump_waits_for_a_write_under_way,
    a_bump_waits_for_a_claim_under_way, a_write_waits_for_a_bump_under_way_and_is_refused,
    what_was_issued_is_known_although_its_record_is_rolled_back, a_new_generation_begins_above_the_old_one,
]  # fmt: skip
