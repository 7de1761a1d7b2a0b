"""Where no floor is seen nothing passes; rows of partitions that are attached take up the marks of deleted keys."""

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race, outcome

from fencepost.storage.protecting.protect import protect

pytestmark = pytest.mark.versions

PARTITIONED = """
CREATE TABLE public.parts (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES FROM (0) TO (10);
"""


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


async def test_rows_that_were_attached_take_up_the_marks_of_deleted_keys(race: Race) -> None:
    db = race.observer
    await db.execute(PARTITIONED)
    await protect(db, "parts")
    assert await race.direct(race.a, "INSERT INTO public.parts VALUES (1, 'a'), (2, 'b')", 10) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.parts", 50) == "ok"
    await db.execute(
        "DROP EVENT TRIGGER fencepost_partitions; DROP EVENT TRIGGER fencepost_dropped;"
        "DROP TABLE public.parts_1; CREATE TABLE public.parts_2 (LIKE public.parts INCLUDING ALL);"
        "INSERT INTO public.parts_2 VALUES (1, 'brought');"
        "ALTER TABLE public.parts ATTACH PARTITION public.parts_2 FOR VALUES FROM (0) TO (10)"
    )
    await protect(db, "parts")  # as doctor advises
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale' WHERE id = 1", 40) == "FP409"
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'new' WHERE id = 1", 51) == "ok"
