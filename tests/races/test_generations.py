"""A generation is raised while others write: the database's own (R19), and a lock service's or a queue's (R12)."""

from typing import Literal, TypeAlias

from asyncpg.transaction import Transaction
from tests.races.openings import BUILTIN, on_service, on_table, opened
from tests.races.test_pruning import absent
from tests.support.interleave import Connection
from tests.support.lease_racing import granted
from tests.support.racing import ISSUED, WITHOUT_FLOORS, Race, outcome

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import leases, sources, upkeep
from fencepost.server.postgres.leases import hash_secret
from fencepost.server.postgres.sources import KnownSource

pytestmark = opened(BUILTIN)

REDIS, KAFKA = on_service("redis", "strict"), on_service("kafka:Orders.eu-1", "epoch")


async def raised(race: Race) -> int:
    """Raise the generation. Returns its first token."""
    first = await upkeep.raise_generation(race.observer, "test") << 48
    assert await race.observer.fetchval("SELECT fencepost.oldest()") == first
    return first


async def drawn(race: Race) -> int:
    """Draw a token of the generation of now."""
    token: int = await race.observer.fetchval("SELECT nextval('fencepost.tokens')")
    return token


@opened(BUILTIN, on_table("epoch", "builtin"))
async def test_update_under_an_old_token_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    first = await raised(race)
    assert await outcome(race.update(race.a, "k", 40)) == "FP409"
    for sql in (
        "UPDATE public.orders SET status = 'zombie', last_fence_token = 40",
        "UPDATE public.orders SET status = 'zombie', last_fence_token = -40",
    ):
        assert await race.direct(race.a, sql) == "FP409", sql
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'zombie'", 40) == "FP409"
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'zombie'", 30) == "FP409", "lease: equal"
    token = await drawn(race)
    assert await race.update(race.a, "k", token)
    assert await race.live_mark("k") == token == first


async def test_insert_under_an_old_token_is_refused(race: Race) -> None:
    await raised(race)
    await race.observer.execute(WITHOUT_FLOORS)  # the trigger by itself
    assert await outcome(race.insert(race.a, "k", 40)) == "FP409"
    token = await drawn(race)
    assert await outcome(race.insert(race.a, "k", token)) != "FP409"


async def test_delete_under_an_old_token_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await raised(race)
    assert await outcome(race.delete(race.a, "k", 40)) == "FP409"
    assert await race.direct(race.a, "DELETE FROM public.orders", 40) == "FP409"
    assert await race.row("k")
    token = await drawn(race)
    assert await race.delete(race.a, "k", token)


async def test_keys_without_a_row_are_refused(race: Race) -> None:
    """By the floor, which is what is asked where no trigger sees anything."""
    first = await raised(race)
    assert await outcome(race.claim_absent(race.a, "k", 40)) == first - 1
    assert await race.verdict("k", 40) == "stale"
    token = await drawn(race)
    assert await race.verdict("k", token) == "missing"
    assert await race.claim_absent(race.a, "k", token) is None


async def test_a_claim_under_an_old_token_is_refused_without_the_floor(race: Race) -> None:
    await raised(race)
    await race.observer.execute(WITHOUT_FLOORS)
    assert await outcome(race.claim_absent(race.a, "k", 40)) == "FP409"


async def test_a_generation_waits_for_a_write_under_way(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    writer = await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    raising = await race.waits(race.b, upkeep.raise_generation(race.b, "test"))
    await writer.commit()
    assert await raising > 0
    assert await race.live_mark("k") == 40
    assert await outcome(race.update(race.a, "k", 41)) == "FP409"


async def test_a_grant_under_way_is_over_once_the_generation_is_raised(race: Race) -> None:
    grant = await race.begin(race.a)
    await granted(race.a, "mine")
    lease_id = await race.a.fetchval("SELECT lease_id FROM fencepost.leases")
    assert await leases.inspect(race.a, lease_id) is not None
    raising = await race.waits(race.b, upkeep.raise_generation(race.b, "test"))
    await grant.commit()
    first = await raising << 48
    assert await leases.extend(race.a, lease_id, hash_secret("mine"), tokens=1) is None
    assert await leases.inspect(race.a, lease_id) is None
    assert await granted(race.a, "mine") == first, "the lock is free"
    again = await race.observer.fetchval("SELECT max(lease_id) FROM fencepost.leases")
    assert again == first + 2**47 + 1, "a lease's number is above all that the other database may have given"


async def test_a_mint_that_has_its_lease_and_no_token_yet_does_not_deadlock(race: Race) -> None:
    await granted(race.a, "mine")
    mint = await race.begin(race.a)
    await race.a.execute("SELECT FROM fencepost.leases FOR UPDATE")  # what a mint does before it draws
    raising = await race.waits(race.b, outcome(upkeep.raise_generation(race.b, "test")))
    drawn_meanwhile = await outcome(race.a.fetchval("SELECT nextval('fencepost.tokens')"))
    assert drawn_meanwhile == ISSUED + 2, drawn_meanwhile
    await mint.commit()
    assert isinstance(await raising, int)


async def test_a_generation_goes_beyond_tokens_that_were_moved_far(race: Race) -> None:
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", (900 << 48) + 9)
    first = await raised(race)
    assert first >= 901 << 48
    assert await drawn(race) == first


async def test_two_histories_raise_different_numbers(race: Race) -> None:
    """By chance: the same number nine times of ten would be a mend of nothing."""
    numbers = set()
    for _ in range(10):
        undone = await race.begin(race.observer)
        numbers.add(await upkeep.raise_generation(race.observer, "test"))
        await undone.rollback()
    assert len(numbers) > 1, numbers
    assert max(numbers) <= 512


async def test_an_external_table_takes_its_tokens_as_before(race: Race) -> None:
    await race.observer.execute("CREATE TABLE public.external (id text PRIMARY KEY)")
    await protect(race.observer, "external")
    await raised(race)
    assert await race.direct(race.a, "INSERT INTO public.external (id) VALUES ('e')", 7) == "ok"
    found = await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = 'external'")
    assert found == 0


async def test_a_floor_that_is_higher_does_not_fall(race: Race) -> None:
    """The floor never falls, whatever raises it."""
    await absent(race, "k", 50)
    await race.observer.execute("UPDATE fencepost.floors SET floor = $1", 1 << 60)
    await raised(race)
    assert await race.observer.fetchval("SELECT floor FROM fencepost.floors") == 1 << 60


# A lock service's or a queue's. Only PostgreSQL's part is shown.

Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "repeatable_read", "serializable")


async def issue(race: Race, token: int, by: "Connection | None" = None) -> None:
    """Let the source have issued this token and all below."""
    await sources.record_verified(by or race.observer, race.fence.source, token)


async def raise_generation(race: Race, by: Connection) -> None:
    assert await sources.raise_source(by, race.fence.source, "test") == 1


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


async def issued_one(race: Race) -> int:
    """Let the source have issued one more token of its present generation, and return it."""
    token = (await bounds(race)).issued + 1
    await issue(race, token)
    return token


@opened(REDIS, KAFKA)
async def test_a_transaction_from_before_a_bump_is_refused_after_it(race: Race) -> None:
    """Whatever its isolation level and verb: its snapshot does not know of the new generation."""
    await race.insert(race.a, "k", 30)
    for isolation in ISOLATIONS:
        for verb, sql in VERBS.items():
            token = await issued_one(race)
            transaction = await begun(race.a, isolation, token)
            if verb == "column":
                await race.a.execute("RESET fencepost.token")
            await sources.raise_source(race.observer, race.fence.source, f"{isolation} {verb}")
            assert await outcome(race.a.execute(sql.format(token))) == "FP409", (isolation, verb)
            await transaction.rollback()
    assert (await race.row("k") or {})["status"] == "new"


@opened(REDIS, KAFKA)
async def test_a_claim_from_before_a_bump_is_refused_after_it(race: Race) -> None:
    for isolation in ISOLATIONS:
        token = await issued_one(race)
        transaction = await begun(race.a, isolation, token)
        await sources.raise_source(race.observer, race.fence.source, isolation)
        assert await outcome(race.claim_absent(race.a, "absent", token)) == "FP409", isolation
        await transaction.rollback()
        assert await race.recorded("absent") is None


@opened(REDIS, KAFKA)
async def test_a_token_that_is_granted_after_the_snapshot_passes(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    for number, isolation in enumerate(ISOLATIONS, 1):
        token = ISSUED + number
        transaction = await begun(race.a, isolation, token)
        await issue(race, token)
        assert await outcome(race.a.execute(VERBS["update"])) == "UPDATE 1", isolation
        await transaction.commit()
        assert await race.live_mark("k") == token


@opened(REDIS, KAFKA)
async def test_a_bump_waits_for_a_write_under_way(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    writer = await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    raising = await race.waits(race.b, raise_generation(race, race.b))
    await writer.commit()
    await raising
    assert await race.live_mark("k") == 40
    assert await outcome(race.update(race.a, "k", 41)) == "FP409"


@opened(REDIS, KAFKA)
async def test_a_bump_waits_for_a_claim_under_way(race: Race) -> None:
    claimer = await race.begin(race.a)
    assert await race.claim_absent(race.a, "absent", 40) is None
    raising = await race.waits(race.b, raise_generation(race, race.b))
    await claimer.commit()
    await raising
    assert await race.recorded("absent") == (40, True)


@opened(REDIS, KAFKA)
async def test_a_write_waits_for_a_bump_under_way_and_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    raising = await race.begin(race.b)
    await race.b.execute("SELECT fencepost.source_raise($1, 'test', 0)", race.fence.source)
    write = await race.waits(race.a, outcome(race.update(race.a, "k", 40)))
    insert = await race.waits(race.c, outcome(race.insert(race.c, "other", 40)))
    await raising.commit()
    assert (await write, await insert) == ("FP409", "FP409")


@opened(REDIS, KAFKA)
async def test_what_was_issued_is_known_although_its_record_is_rolled_back(race: Race) -> None:
    """The service has handed the token out. A backup that is restored gives it again, and that must show."""
    recording = await race.begin(race.b)
    await issue(race, ISSUED + 5, race.b)
    await recording.rollback()
    assert (await bounds(race)).issued == ISSUED + 5
    await issue(race, ISSUED + 1)
    assert (await bounds(race)).issued == ISSUED + 5, "and it never falls"


@opened(REDIS, KAFKA)
async def test_a_new_generation_begins_above_the_old_one(race: Race) -> None:
    await raise_generation(race, race.observer)
    state = await bounds(race)
    # The first number of generation 1, which counts as issued.
    first = 1 << 48
    assert (state.generation, state.issued) == (1, first)
    [known] = await sources.list_known(race.observer)
    assert known.describe() == "generation 1, nothing issued yet"
    assert await sources.raise_source(race.observer, race.fence.source, "above", (7 << 48) + 3) == 8
    await issue(race, (7 << 48) + 9)
    assert (await bounds(race)).issued == 8 << 48, "of another generation"
