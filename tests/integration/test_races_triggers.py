"""R14 as far as R6 stands on it, R11: the triggers apply the same rule to psql, an ORM, a cron job."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.server.ops.protect import protect

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('new')"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    return race


MALFORMED = [
    "0", "-36", "+36", " 36", "36 ", "36\n", "036", "3_6", "36,37", "٣٦", "３６", "1e3", "0x24", "36.0", "x",  # noqa: RUF001
    "9223372036854775808", "99999999999999999999", "orders=", "orders=036", "orders=36=37", "orders==36",
]  # fmt: skip


async def test_a_malformed_token_is_refused_and_not_repaired_and_the_largest_is_one(race: Race) -> None:
    for token in MALFORMED:
        for statement in (UPDATE, INSERT, DELETE):
            assert await race.direct(race.a, statement, token) == "FP400", (statement, token)
    assert await race.live_mark("k") == 30
    await protect(race.observer, "orders", max_token=2**63 - 1)
    assert await race.direct(race.a, UPDATE, 2**63 - 1) == "ok"
    assert await race.live_mark("k") == 2**63 - 1


async def test_a_users_trigger_that_changes_the_token_does_not_get_it_past_the_fence(race: Race) -> None:
    """Ours run last, by name: they judge what is really written."""
    await race.observer.execute("""
        CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN NEW.last_fence_token := 5; RETURN NEW; END $$;
        CREATE TRIGGER meddle BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION meddle()""")
    assert await outcome(race.update(race.a, "k", 31)) == "FP409"
    assert await race.live_mark("k") == 30


async def test_truncate_is_refused_also_when_it_comes_by_cascade(race: Race) -> None:
    await race.observer.execute("CREATE TABLE parent (order_id text PRIMARY KEY)")
    await race.observer.execute("INSERT INTO parent VALUES ('k')")
    await race.observer.execute("ALTER TABLE orders ADD FOREIGN KEY (order_id) REFERENCES parent")
    for statement in ("TRUNCATE public.orders", "TRUNCATE public.parent CASCADE"):
        assert await race.direct(race.a, statement, 99) == "FP428", statement


async def test_a_token_for_a_table_whose_name_begins_with_anothers_is_none_for_the_other(
    connect: Connect, unmade: Unmade
) -> None:
    """a=b=36 is for the table called "a=b", and no token for the table a."""
    connection = await owner(connect)
    race = await open_race(connect, unmade, ddl="CREATE TABLE a (id text PRIMARY KEY)", name="a")
    await connection.execute('CREATE TABLE "a=b" (id text PRIMARY KEY)')
    await protect(connection, "a=b")
    assert await race.direct(race.a, """INSERT INTO public."a=b" VALUES ('k')""", "a=b=36") == "ok"
    assert await race.direct(race.a, "INSERT INTO public.a VALUES ('k')", "a=b=36") in ("FP428", "FP400")
