"""R14: a token in fencepost.token and a value in the column at once. The setting counts, whatever the column has.

An ORM writes all columns: the value in the column is then what it has read, and the setting what it was granted.
"""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import BOTH_RULES, Race, open_race

UPDATE = "UPDATE orders SET n = 2, last_fence_token = {0}"
INSERT = "INSERT INTO orders (order_id, last_fence_token) VALUES ('new', {0})"


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, getattr(request, "param", "strict"))
    await race.insert(race.a, "k", 30)
    return race


async def start_over(race: Race) -> None:
    """Row k at mark 30 and nothing else, behind the triggers' back."""
    await race.observer.execute(
        "SET session_replication_role = replica; DELETE FROM orders; DELETE FROM fencepost.marks;"
        "INSERT INTO orders VALUES ('k', 'new', 0, 30); RESET session_replication_role"
    )


async def test_of_an_update_the_setting_counts(race: Race) -> None:
    upsert = (
        "INSERT INTO orders (order_id, n, last_fence_token) VALUES ('k', 2, {0})"
        " ON CONFLICT (order_id) DO UPDATE SET n = 2, last_fence_token = excluded.last_fence_token"
    )
    for statement in (UPDATE, upsert):
        for column in (1, 30, 31, 45, 70, -31, -70):
            await start_over(race)
            sql = statement.format(column)
            assert await race.direct(race.a, sql, 29) == "FP409", (sql, "stale, whatever the column says")
            assert await race.live_mark("k") == 30, sql
            assert await race.direct(race.a, sql, 50) == "ok", sql
            assert await race.live_mark("k") == 50, (sql, "no older holder gets in below it")
            assert await race.direct(race.a, sql, "orders=51") == "ok", sql
            assert await race.live_mark("k") == 51, sql
            assert await race.direct(race.a, "UPDATE orders SET n = 3", 50) == "FP409", sql


async def test_of_an_insert_the_setting_counts(race: Race) -> None:
    for column in (1, 30, 45, 70, -31, -70):
        await start_over(race)
        sql = INSERT.format(column)
        assert await race.direct(race.a, sql, 50) == "ok", sql
        assert await race.live_mark("new") == 50, sql
        assert await race.direct(race.a, "DELETE FROM orders WHERE order_id = 'new'", 60) == "ok", sql
        assert await race.direct(race.a, sql, 55) == "FP409", sql
        assert await race.direct(race.a, sql, 61) == "ok", (sql, "and no echo of an old mark is in its holder's way")
        assert await race.live_mark("new") == 61, sql


@BOTH_RULES
async def test_a_row_that_comes_back_with_its_old_column_has_no_token(race: Race) -> None:
    """As an ORM merges a row that it had read before it was deleted; under epoch too, where its token was the last."""
    assert await race.direct(race.a, "DELETE FROM orders", 36) == "ok"
    back = "INSERT INTO orders (order_id, last_fence_token) VALUES ('k', 36)"
    assert await race.direct(race.a, back) == ("FP409" if race.strict else "FP428")
    assert await race.direct(race.a, back.replace("36", "35")) == "FP409"
    # Given in a setting or as a negative value, it is one.
    expected = "FP409" if race.strict else "ok"
    assert await race.direct(race.a, back, 36) == expected
    if not race.strict:
        assert await race.direct(race.a, "DELETE FROM orders", 36) == "ok"
    assert await race.direct(race.a, back.replace("36", "-36")) == expected
    if not race.strict:
        assert await race.direct(race.a, "DELETE FROM orders", 36) == "ok"
        assert await race.direct(race.a, back) == "FP428", "said in another transaction"


async def test_a_token_given_for_one_row_was_given_for_no_other(connect: Connect, unmade: Unmade) -> None:
    """Tokens of a lock service that counts per lock are often equal."""
    race = await open_race(connect, unmade, "epoch")
    insert = "INSERT INTO orders (order_id, last_fence_token) VALUES "
    for key, token in (("a", 5), ("b", 6), ("c;d=5;", 5)):
        assert await race.direct(race.a, f"{insert}('{key}', {token})") == "ok", (key, token)
        assert await race.direct(race.a, f"DELETE FROM orders WHERE order_id = '{key}'", token) == "ok", (key, token)
    echo = f"{insert}('a', 5)"
    for statement in (
        f"{insert}('z', -5); {echo}", f"{insert}('a', 5), ('z', -5)",
        f"{insert}('z', -5) ON CONFLICT DO NOTHING; {echo}", f"{insert}('c;d=5;', -5); {echo}",
        f"SAVEPOINT s; {insert}('a', -5); ROLLBACK TO s; {echo}",
    ):  # fmt: skip
        assert await race.direct(race.a, statement) == "FP428", statement
        assert await race.observer.fetchval("SELECT count(*) FROM orders") == 0, statement
    assert await race.direct(race.a, f"{insert}('a', -5), ('b', -6), ('c;d=5;', -5)") == "ok", "each its own"
    assert await race.observer.fetchval("SELECT count(*) FROM orders") == 3
    # An upsert whose proposed row has it; the same holder again.
    update = "UPDATE SET n = 3, last_fence_token = excluded.last_fence_token"
    upsert = f"{insert}('a', -7) ON CONFLICT (order_id) DO {update}"
    assert await race.direct(race.a, upsert) == "ok"
    assert await race.direct(race.a, upsert) == "ok"
    assert await race.direct(race.a, upsert.replace("-7", "7")) == "FP428"
    assert await race.direct(race.a, upsert.replace("-7", "-6")) == "FP409"


async def test_the_lowest_number_is_no_token(race: Race) -> None:
    for statement in (UPDATE, INSERT):
        assert await race.direct(race.a, statement.format(-(2**63))) == "FP400", statement


async def test_a_trigger_that_goes_on_writing_the_row_needs_no_token_of_its_own(race: Race) -> None:
    """The row version is its transaction's, which is one operation (R1); another transaction's is not."""
    after = """
        CREATE FUNCTION public.slug() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN
          UPDATE public.orders SET status = 'seen' WHERE order_id = NEW.order_id AND status <> 'seen';
          RETURN NULL;
        END $$;
        CREATE TRIGGER slug AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.slug()"""
    await race.observer.execute(after)
    assert await race.direct(race.a, UPDATE.format(31)) == "ok"
    assert await race.direct(race.a, INSERT.format(32)) == "ok"
    assert await race.observer.fetchval("SELECT array_agg(DISTINCT status) FROM orders") == ["seen"]
    assert (await race.live_mark("k"), await race.live_mark("new")) == (31, 32)
    await race.observer.execute("DROP TRIGGER slug ON public.orders")
    begun = await race.begin(race.b)
    await race.b.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")  # a lock is no version of ours
    await begun.rollback()
    assert await race.direct(race.b, "SELECT FROM orders FOR UPDATE; UPDATE orders SET n = 5") == "FP428"
    twice = "UPDATE orders SET n = 1, last_fence_token = {} WHERE order_id = 'k'; {}"
    assert await race.direct(race.a, twice.format(33, "DELETE FROM orders WHERE order_id = 'k'")) == "ok"
    assert await race.recorded("k") == (33, True)
    new = "UPDATE orders SET n = 1, last_fence_token = 40 WHERE order_id = 'new'; INSERT INTO orders VALUES ('b')"
    assert await race.direct(race.a, new) == "FP428", "another row needs its own"
