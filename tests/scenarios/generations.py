"""Raising the generation while others write (R19). The table is of the built-in source, which issued ISSUED tokens."""

from tests.scenarios.pruning import absent, granted
from tests.support.racing import ISSUED, WITHOUT_FLOORS, Race, outcome

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import leases, upkeep
from fencepost.server.postgres.leases import hash_secret


async def raised(race: Race) -> int:
    """Raise the generation. Returns its first token."""
    first = await upkeep.raise_generation(race.observer, "test") << 48
    assert await race.observer.fetchval("SELECT fencepost.oldest()") == first
    return first


async def drawn(race: Race) -> int:
    """Draw a token of the generation of now."""
    token: int = await race.observer.fetchval("SELECT nextval('fencepost.tokens')")
    return token


async def update_under_an_old_token_is_refused(race: Race) -> None:
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


async def insert_under_an_old_token_is_refused(race: Race) -> None:
    await raised(race)
    await race.observer.execute(WITHOUT_FLOORS)  # the trigger by itself
    assert await outcome(race.insert(race.a, "k", 40)) == "FP409"
    token = await drawn(race)
    assert await outcome(race.insert(race.a, "k", token)) != "FP409"


async def delete_under_an_old_token_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    await raised(race)
    assert await outcome(race.delete(race.a, "k", 40)) == "FP409"
    assert await race.direct(race.a, "DELETE FROM public.orders", 40) == "FP409"
    assert await race.row("k")
    token = await drawn(race)
    assert await race.delete(race.a, "k", token)


async def keys_without_a_row_are_refused(race: Race) -> None:
    """By the floor, which is what is asked where no trigger sees anything."""
    first = await raised(race)
    assert await outcome(race.claim_absent(race.a, "k", 40)) == first - 1
    assert await race.verdict("k", 40) == "stale"
    token = await drawn(race)
    assert await race.verdict("k", token) == "missing"
    assert await race.claim_absent(race.a, "k", token) is None


async def a_claim_under_an_old_token_is_refused_without_the_floor(race: Race) -> None:
    await raised(race)
    await race.observer.execute(WITHOUT_FLOORS)
    assert await outcome(race.claim_absent(race.a, "k", 40)) == "FP409"


async def a_generation_waits_for_a_write_under_way(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    writer = await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    raising = await race.waits(race.b, upkeep.raise_generation(race.b, "test"))
    await writer.commit()
    assert await raising > 0
    assert await race.live_mark("k") == 40
    assert await outcome(race.update(race.a, "k", 41)) == "FP409"


async def a_grant_under_way_is_over_once_the_generation_is_raised(race: Race) -> None:
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


async def a_mint_that_has_its_lease_and_no_token_yet_does_not_deadlock(race: Race) -> None:
    await granted(race.a, "mine")
    mint = await race.begin(race.a)
    await race.a.execute("SELECT FROM fencepost.leases FOR UPDATE")  # what a mint does before it draws
    raising = await race.waits(race.b, outcome(upkeep.raise_generation(race.b, "test")))
    drawn_meanwhile = await outcome(race.a.fetchval("SELECT nextval('fencepost.tokens')"))
    assert drawn_meanwhile == ISSUED + 2, drawn_meanwhile
    await mint.commit()
    assert isinstance(await raising, int)


async def a_generation_goes_beyond_tokens_that_were_moved_far(race: Race) -> None:
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", (900 << 48) + 9)
    first = await raised(race)
    assert first >= 901 << 48
    assert await drawn(race) == first


async def two_histories_raise_different_numbers(race: Race) -> None:
    """By chance: the same number nine times of ten would be a mend of nothing."""
    numbers = set()
    for _ in range(10):
        undone = await race.begin(race.observer)
        numbers.add(await upkeep.raise_generation(race.observer, "test"))
        await undone.rollback()
    assert len(numbers) > 1, numbers
    assert max(numbers) <= 512


async def an_external_table_takes_its_tokens_as_before(race: Race) -> None:
    await race.observer.execute("CREATE TABLE public.external (id text PRIMARY KEY)")
    await protect(race.observer, "external")
    await raised(race)
    assert await race.direct(race.a, "INSERT INTO public.external (id) VALUES ('e')", 7) == "ok"
    found = await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = 'external'")
    assert found == 0


async def pruned_and_raised(race: Race) -> None:
    """The floor never falls, whatever raises it."""
    await absent(race, "k", 50)
    await race.observer.execute("UPDATE fencepost.floors SET floor = $1", 1 << 60)
    await raised(race)
    assert await race.observer.fetchval("SELECT floor FROM fencepost.floors") == 1 << 60


SCENARIOS = [
    update_under_an_old_token_is_refused, insert_under_an_old_token_is_refused, delete_under_an_old_token_is_refused,
    keys_without_a_row_are_refused, a_claim_under_an_old_token_is_refused_without_the_floor,
    a_generation_waits_for_a_write_under_way, a_grant_under_way_is_over_once_the_generation_is_raised,
    a_mint_that_has_its_lease_and_no_token_yet_does_not_deadlock, a_generation_goes_beyond_tokens_that_were_moved_far,
    two_histories_raise_different_numbers, an_external_table_takes_its_tokens_as_before, pruned_and_raised,
]  # fmt: skip
