"""A protected table that has lost its column of marks: no mark is forgotten by what `protect` makes of it (R6)."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.doctor_tables import examine_tables
from fencepost.server.ops.protect import apply, plan_protect, protect, unprotect

GONE = "ALTER TABLE public.orders DROP COLUMN last_fence_token CASCADE"
RENAMED = "ALTER TABLE public.orders RENAME COLUMN last_fence_token TO mark"
UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'live'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('gone')"


async def opened(connect: Connect, unmade: Unmade, source: str) -> Race:
    race = await open_race(connect, unmade, "strict", source=source)
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    await race.insert(race.a, "live", 50)
    return race


async def advice(race: Race) -> str:
    return "\n".join([each.text for each in await examine_tables(race.observer) if each.level == "error"])


async def lost(race: Race, harm: str = GONE) -> None:
    await race.observer.execute(harm)
    for statement in (UPDATE, INSERT, "DELETE FROM public.orders"):
        assert await race.direct(race.a, statement, 60) not in ("ok", "FP409"), "nothing is written meanwhile"


async def test_the_rows_take_up_what_the_built_in_source_has_issued(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    issued = await race.observer.fetchval("SELECT fencepost.issued()")
    await lost(race)
    assert "fencepost protect orders" in await advice(race)
    await protect(race.observer, "orders")
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 45) == "FP409", statement
        assert await race.direct(race.a, statement, issued) == "FP409", statement
    for statement in (UPDATE, INSERT):
        later = await race.observer.fetchval("SELECT nextval('fencepost.tokens')")
        assert await race.direct(race.a, statement, later) == "ok", statement
    assert await race.observer.fetchval("SELECT max(floor) FROM fencepost.floors WHERE name = 'orders'") == issued
    default = "SELECT column_default FROM information_schema.columns WHERE column_name = 'last_fence_token'"
    assert await race.observer.fetchval(default + " AND table_name = 'orders'") == "0"


async def test_those_of_an_external_source_only_with_a_word(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    assert "--above" in await advice(race)
    for source in (None, "builtin"):
        with pytest.raises(ProtectError, match="marks are lost"):
            await protect(race.observer, "orders", source=source)
    await protect(race.observer, "orders", above=100)
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 100) == "FP409", statement
        assert await race.direct(race.a, statement, 101) == "ok", statement


async def test_the_marks_that_are_known_count_if_they_are_higher(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    await protect(race.observer, "orders", above=10)
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 40) == "FP409", statement


async def test_the_word_is_for_a_table_that_has_lost_its_marks(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    with pytest.raises(ProtectError, match="--above"):
        await protect(race.observer, "orders", above=100)
    await race.observer.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    await protect(race.observer, "t", source="builtin")
    await race.observer.execute("ALTER TABLE public.t DROP COLUMN last_fence_token CASCADE")
    with pytest.raises(ProtectError, match="--above"):
        await protect(race.observer, "t", above=100)
    await race.observer.execute("ALTER TABLE public.orders DROP COLUMN last_fence_token CASCADE")
    with pytest.raises(ProtectError, match="--above 100 is above 99, the highest token that the table takes"):
        await protect(race.observer, "orders", above=100, max_token=99)


async def test_a_column_that_was_renamed_is_to_be_renamed_back(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    await lost(race, RENAMED)
    back = 'ALTER TABLE "public"."orders" RENAME COLUMN "mark" TO last_fence_token'
    assert back in await advice(race)
    with pytest.raises(ProtectError) as refused:
        await protect(race.observer, "orders")
    assert back in str(refused.value)
    await race.observer.execute(back)
    await protect(race.observer, "orders")
    assert await race.direct(race.a, UPDATE, 45) == "FP409"
    assert await race.direct(race.a, UPDATE, 51) == "ok"


async def test_a_column_that_is_lost_between_look_and_lock_is_not_made_anew(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    plan = await plan_protect(race.observer, "orders", None, None)
    await lost(race)
    with pytest.raises(ProtectError, match="marks are lost"):
        await apply(race.observer, plan)


async def test_it_takes_what_is_above_its_marks_into_a_scope(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    with pytest.raises(ProtectError, match="marks are lost"):
        await protect(race.observer, "orders", scope="number/{n}")
    await protect(race.observer, "orders", scope="number/{n}", above=100)
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'x'", 100) == "FP409"
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'x'", 101) == "ok"


async def test_unprotect_does_not_forget_either(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "builtin")
    issued = await race.observer.fetchval("SELECT fencepost.issued()")
    await lost(race)
    await unprotect(race.observer, "orders")
    await protect(race.observer, "orders")
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, issued) == "FP409", statement


async def test_unprotect_of_an_external_table_asks_for_the_word_first(connect: Connect, unmade: Unmade) -> None:
    race = await opened(connect, unmade, "external")
    await lost(race)
    with pytest.raises(ProtectError, match=r"marks are lost.* run `fencepost protect orders --above N`"):
        await unprotect(race.observer, "orders")
    await protect(race.observer, "orders", above=100)
    await unprotect(race.observer, "orders")


@pytest.mark.parametrize("source", ["builtin", "external"])
async def test_a_column_that_was_taken_away_after_unprotect_is_made_anew_with_all_marks(
    connect: Connect, unmade: Unmade, source: str
) -> None:
    race = await opened(connect, unmade, source)
    await unprotect(race.observer, "orders")
    await race.observer.execute(GONE)
    await protect(race.observer, "orders")
    assert await race.direct(race.a, UPDATE, 50) == "FP409"
    assert await race.direct(race.a, INSERT, 40) == "FP409"
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement, 51) == "ok", statement


@pytest.mark.parametrize("harm", [GONE, RENAMED])
async def test_a_column_that_was_made_anew_holds_no_marks(connect: Connect, unmade: Unmade, harm: str) -> None:
    race = await opened(connect, unmade, "external")
    await race.observer.execute(harm)
    await race.observer.execute("ALTER TABLE public.orders ADD COLUMN last_fence_token bigint NOT NULL DEFAULT 0")
    assert await advice(race)
    with pytest.raises(ProtectError, match="DROP COLUMN last_fence_token CASCADE"):
        await protect(race.observer, "orders")
    await race.observer.execute(GONE)
    if harm == RENAMED:
        await race.observer.execute("ALTER TABLE public.orders RENAME COLUMN mark TO last_fence_token")
        await protect(race.observer, "orders")
    else:
        await protect(race.observer, "orders", above=50)
    assert await race.direct(race.a, UPDATE, 50) == "FP409"
    assert await race.direct(race.a, UPDATE, 51) == "ok"
