"""A row that is deleted before the trigger of its own INSERT fires leaves a mark of a key without a row (R6).

Triggers fire by name, and ours last: a trigger of the user's that deletes the row comes before.
"""

from collections.abc import Awaitable, Callable

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, SqlMutant, open_race, outcome, seen
from tests.support.use_cases import keyed, listed, open_gateway, patch, post, put, result_of

TRIGGER = """
CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.n = {n} THEN {does} END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER {name} AFTER INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.{name}()"""
DELETES = "DELETE FROM public.orders WHERE order_id = NEW.order_id;"
REPLACES = (
    f"{DELETES} INSERT INTO public.orders (order_id, n, last_fence_token)"
    " VALUES (NEW.order_id, 0, -NEW.last_fence_token);"
)
TOUCHES = "UPDATE public.orders SET status = 'touched' WHERE order_id = NEW.order_id;"


async def trigger(race: Race, name: str, n: int, does: str) -> None:
    """Make an AFTER INSERT trigger that does something to rows with this n."""
    await race.observer.execute(TRIGGER.format(name=name, n=n, does=does))


async def deleted_by_its_trigger(race: Race) -> None:
    """Before ours by name, and after it; by the gateway's POST and PUT, and by direct SQL."""
    await trigger(race, "eats", 1, DELETES)
    await trigger(race, "zzzz_eats", 2, DELETES)
    async with open_gateway(race.dsn) as gateway:
        for n in (1, 2):
            assert result_of(await post(gateway, listed(50, {"order_id": f"post{n}", "n": n}))) == "created", n
            assert result_of(await put(gateway, keyed(f"put{n}", 50, n=n))) == "created", n
            sql = f"INSERT INTO public.orders (order_id, n) VALUES ('sql{n}', {n})"
            assert await race.direct(race.a, sql, 50) == "ok", n
            for key in (f"post{n}", f"put{n}", f"sql{n}"):
                assert (await race.row(key), await race.recorded(key)) == (None, (50, True)), key
                assert result_of(await patch(gateway, keyed(key, 40, n=0))) == "FP001", key
                assert result_of(await put(gateway, keyed(key, 40, n=0))) == "FP001", key
                assert await race.claim_absent(race.a, key, 40) == 50, key
                assert await outcome(race.insert(race.a, key, 40)) == "FP409", key
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id, n) VALUES ('post1', 0)", 51) == "ok"
    assert await race.recorded("post1") == (51, False)


async def replaced_by_its_trigger(race: Race) -> None:
    """The row that its trigger puts in its place is there."""
    await trigger(race, "replaces", 1, REPLACES)
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id, n) VALUES ('k', 1)", 50) == "ok"
    assert (await race.live_mark("k"), await race.recorded("k")) == (50, (50, False))


async def deleted_in_returning(race: Race) -> None:
    """A function in RETURNING runs before any AFTER trigger."""
    await race.observer.execute(
        "CREATE FUNCTION public.eat(k text) RETURNS text LANGUAGE plpgsql AS"
        " 'BEGIN DELETE FROM public.orders WHERE order_id = k; RETURN k; END'"
    )
    insertion = "INSERT INTO public.orders (order_id) VALUES ('k') RETURNING public.eat(order_id)"
    assert await race.direct(race.a, insertion, 50) == "ok"
    assert (await race.row("k"), await race.recorded("k")) == (None, (50, True))


async def inserted_again_and_touched(race: Race) -> None:
    """A row that stays is never one that is gone, whatever its trigger does to it."""
    await trigger(race, "touches", 1, TOUCHES)
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id, n) VALUES ('k', 1)", 50) == "ok"
    assert (await race.live_mark("k"), await race.recorded("k")) == (50, (50, False))


ALL = [deleted_by_its_trigger, replaced_by_its_trigger, deleted_in_returning, inserted_again_and_touched]


@pytest.mark.parametrize("scenario", ALL, ids=lambda each: each.__name__)
async def test_the_mark_shows_whether_there_is_a_row(
    scenario: Callable[[Race], Awaitable[None]], connect: Connect, unmade: Unmade
) -> None:
    await scenario(await open_race(connect, unmade))


MUTANTS = [
    SqlMutant("every row is there", "{stem}_insmark", "IF gone THEN", "IF false THEN", deleted_by_its_trigger),
    SqlMutant("every row that was touched is gone", "{stem}_insmark", "IF gone THEN", "IF NEW.xmax <> '0' THEN",
              inserted_again_and_touched),
]  # fmt: skip


test_a_mutant_of_the_trigger_is_seen = seen(MUTANTS)
