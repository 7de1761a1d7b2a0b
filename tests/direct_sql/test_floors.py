"""Where no floor is seen nothing passes; rows of partitions that are attached take up the marks of deleted keys."""

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race, outcome

from fencepost.storage.protecting.protect import protect

pytestmark = pytest.mark.versions


@pytest.fixture
async def race(connect: Connect, database: str) -> Race:
    return await open_race(connect, database, "strict")


async def test_an_insert_without_a_floor_to_judge_it_by_is_refused(race: Race) -> None:
    await race.observer.execute("DELETE FROM fencepost.floors")
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "FP000"
    await protect(race.observer, "orders")
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('k')", 36) == "ok"


async def test_a_snapshot_from_before_the_protection_sees_no_floor_and_fails(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, "strict")
    await race.observer.execute("CREATE TABLE public.late (id integer PRIMARY KEY)")
    old = race.c.transaction(isolation="repeatable_read")
    await old.start()
    await race.c.fetch("SELECT 1 FROM public.orders")
    await protect(race.observer, "late")
    assert await race.direct(race.a, "INSERT INTO public.late VALUES (1)", 50) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.late", 51) == "ok"
    await race.observer.execute("SELECT fencepost.prune('late', 60)")
    await race.c.execute("SET LOCAL fencepost.token = '36'")
    assert await outcome(race.c.execute("INSERT INTO public.late VALUES (1)")) == "40001"
    await old.rollback()


async def test_a_scope_without_a_floor_is_not_entered(race: Race) -> None:
    await race.observer.execute("CREATE TABLE public.items (id integer PRIMARY KEY, account integer NOT NULL)")
    await protect(race.observer, "items", scope="account/{account}")
    await race.observer.execute("DELETE FROM fencepost.floors WHERE name = 'account'")
    assert await race.direct(race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "FP000"
    await protect(race.observer, "items", scope="account/{account}")
    assert await race.direct(race.a, "INSERT INTO public.items VALUES (1, 7)", 36) == "ok"
