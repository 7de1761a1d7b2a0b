"""R14 as far as R6 stands on it, R11: the triggers apply the same rule to psql, an ORM, a cron job."""

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.storage.protecting.protect import protect

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('new')"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"


@pytest.fixture(params=["strict", "epoch"])
async def race(request: pytest.FixtureRequest, connect: Connect, database: str) -> Race:
    race = await open_race(connect, database, request.param)
    await race.insert(race.a, "k", 30)
    return race


async def test_direct_sql_without_a_token_is_refused(race: Race) -> None:
    for statement in (
        UPDATE,
        INSERT,
        DELETE,
        "TRUNCATE public.orders",
        "UPDATE public.orders SET last_fence_token = NULL",
    ):
        assert await race.direct(race.a, statement) == "FP428", statement
    assert await race.live_mark("k") == 30


async def test_set_local_gives_the_token_and_takes_it_back_at_the_end(race: Race) -> None:
    assert await race.direct(race.a, UPDATE, 31) == "ok"
    assert await race.live_mark("k") == 31
    # '' and not NULL from now on in this session.
    assert await race.a.fetchval("SELECT current_setting('fencepost.token', true)") == ""
    assert await race.direct(race.a, UPDATE) == "FP428"
    assert await race.direct(race.a, INSERT, 32) == "ok"
    assert await race.direct(race.a, DELETE, 32) == "ok"
    assert await race.recorded("k") == (32, True)
    assert await race.recorded("new") == (32, False)


async def test_a_stale_token_in_direct_sql_is_refused_like_over_http(race: Race) -> None:
    for statement in (UPDATE, DELETE):
        assert await race.direct(race.a, statement, 29) == "FP409", statement
        assert await race.direct(race.a, statement, 30) == ("FP409" if race.strict else "ok"), statement
    assert await race.direct(race.a, "INSERT INTO public.orders VALUES ('k')", 29) == (
        "23505" if race.strict else "FP409"
    )


async def test_a_token_for_one_table_is_none_for_another(race: Race) -> None:
    assert await race.direct(race.a, UPDATE, "orders=31") == "ok"
    assert await race.direct(race.a, UPDATE, "other=32") == "FP428"
    assert await race.direct(race.a, UPDATE, "orders2=32") == "FP428"
    assert await race.direct(race.a, UPDATE, "public.orders=32") == "FP428"


@pytest.mark.parametrize(
    "token",
    ["0", "-36", "+36", " 36", "36 ", "36\n", "036", "3_6", "36,37", "٣٦", "３６", "1e3", "0x24", "36.0", "x",  # noqa: RUF001
     "9223372036854775808", "99999999999999999999", "orders=", "orders=036", "orders=36=37", "orders==36"],
)  # fmt: skip
async def test_a_malformed_token_is_refused_and_not_repaired(race: Race, token: str) -> None:
    for statement in (UPDATE, INSERT, DELETE):
        assert await race.direct(race.a, statement, token) == "FP400", statement
    assert await race.live_mark("k") == 30


async def test_the_largest_token_is_one(race: Race) -> None:
    await protect(race.observer, "orders", max_token=2**63 - 1)
    assert await race.direct(race.a, UPDATE, 2**63 - 1) == "ok"
    assert await race.live_mark("k") == 2**63 - 1


async def test_one_transaction_is_one_operation_whatever_it_does_to_the_row(race: Race) -> None:
    async with race.a.transaction():
        await race.a.execute("SET LOCAL fencepost.token = '31'")
        for statement in (UPDATE, UPDATE, DELETE, "INSERT INTO public.orders (order_id) VALUES ('k')", UPDATE):
            await race.a.execute(statement)
    assert await race.live_mark("k") == 31
    assert await race.direct(race.a, UPDATE, 31) == ("FP409" if race.strict else "ok")


async def test_a_savepoint_that_is_rolled_back_takes_its_token_back(race: Race) -> None:
    async with race.a.transaction():
        await race.a.execute("SET LOCAL fencepost.token = '31'")
        await race.a.execute(f"SAVEPOINT s; {UPDATE}; ROLLBACK TO s")
    assert await race.live_mark("k") == 30
    async with race.a.transaction():
        await race.a.execute("SET LOCAL fencepost.token = '31'")
        await race.a.execute(f"{UPDATE}; SAVEPOINT t; {UPDATE}; SAVEPOINT u; {UPDATE}; RELEASE u; {UPDATE}")
    assert (await race.row("k") or {})["n"] == 4


async def test_a_refused_insert_can_be_taken_back_to_a_savepoint_and_the_rest_stays(race: Race) -> None:
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 40)
    async with race.a.transaction():
        assert await race.update(race.a, "k", 31, status="y")
        savepoint = race.a.transaction()
        await savepoint.start()
        assert await outcome(race.insert(race.a, "gone", 39)) == "FP409"
        await savepoint.rollback()
    assert (await race.row("k") or {})["status"] == "y"
    assert await race.row("gone") is None


async def test_the_gateways_own_token_is_spent_for_others_in_and_after_its_transaction(race: Race) -> None:
    holder = await race.begin(race.a)
    assert await race.update(race.a, "k", 40)
    if race.strict:
        assert await race.update(race.a, "k", 40) is None  # one token, one write
    waiter = await race.waits(race.b, race.direct(race.b, UPDATE, 40))
    await holder.commit()
    assert await waiter == ("FP409" if race.strict else "ok")


async def test_an_upsert_takes_the_token_of_set_local(race: Race) -> None:
    upsert = "INSERT INTO public.orders (order_id) VALUES ('k') ON CONFLICT (order_id) DO UPDATE SET status = 'up'"
    assert await race.direct(race.a, upsert, 31) == "ok"
    assert await race.live_mark("k") == 31
    assert await race.direct(race.a, upsert, 30) == "FP409"
    assert await race.direct(race.a, upsert) == "FP428"


async def test_an_upsert_that_waits_for_a_delete_is_judged_by_the_mark_that_it_left(race: Race) -> None:
    upsert = "INSERT INTO public.orders (order_id) VALUES ('k') ON CONFLICT (order_id) DO UPDATE SET status = 'up'"
    holder = await race.begin(race.a)
    await race.delete(race.a, "k", 34)
    waiter = await race.waits(race.b, race.direct(race.b, upsert, 33))
    await holder.commit()
    assert await waiter == "FP409"
    assert await race.row("k") is None


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


async def test_session_replication_role_replica_silences_the_triggers(race: Race) -> None:
    """Known: logical apply does it, and superusers may. fencepost.marks belongs into the publication then."""
    await race.observer.execute(
        "SET session_replication_role = replica; DELETE FROM orders; RESET session_replication_role"
    )
    assert await race.row("k") is None
    assert await race.recorded("k") == (30, False)
    assert await outcome(race.insert(race.a, "k", 29)) == "FP409"  # what the marks know still holds


async def test_a_hostile_search_path_fools_no_trigger(race: Race) -> None:
    await race.insert(race.a, "gone", 30)
    await race.delete(race.a, "gone", 50)
    await race.observer.execute(
        "CREATE SCHEMA evil; CREATE TABLE evil.w (id int, mark bigint); INSERT INTO evil.w VALUES (1, 50)"
    )
    for name, symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=")):
        for type_ in ("bigint", "text"):
            await race.observer.execute(
                f"CREATE FUNCTION evil.{name}({type_}, {type_}) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
                f"CREATE OPERATOR evil.{symbol} (LEFTARG = {type_}, RIGHTARG = {type_}, FUNCTION = evil.{name})"
            )
    await race.observer.execute("""
        CREATE FUNCTION evil.naive() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NOT OLD.mark < NEW.mark THEN RAISE 'stale'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER naive BEFORE UPDATE ON evil.w FOR EACH ROW EXECUTE FUNCTION evil.naive()""")
    await race.a.execute("SET search_path = evil, pg_catalog, public")
    # The control: a trigger that does not name its operators is fooled.
    assert await race.direct(race.a, "UPDATE evil.w SET mark = 1") == "ok"
    assert await race.direct(race.a, "UPDATE public.orders SET last_fence_token = 29") == "FP409"
    assert await race.direct(race.a, "UPDATE public.orders SET n = 5", 29) == "FP409"
    assert await race.direct(race.a, "UPDATE public.orders SET order_id = 'z'", 60) == "FP400"
    assert await race.direct(race.a, "DELETE FROM public.orders", 29) == "FP409"
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id) VALUES ('gone')", 49) == "FP409"
    assert (
        await outcome(race.update(race.a, "k", 29)) == "FP409"
    )  # the statement is fooled, the trigger behind it is not
    assert await race.delete(race.a, "k", 29) is None
    assert await race.live_mark("k") == 30


async def test_control_a_token_set_in_the_statement_judges_rows_that_it_was_not_meant_for(race: Race) -> None:
    """Why DELETE has a function: with a hash join all tokens are set before the first row goes."""
    await race.insert(race.a, "a", 30)
    await race.insert(race.a, "b", 50)
    async with race.a.transaction():
        await race.a.execute("SET LOCAL enable_nestloop = off; SET LOCAL enable_mergejoin = off")
        gone = await race.a.fetch("""
            DELETE FROM public.orders o USING unnest(ARRAY['b', 'a'], ARRAY[40, 99]) u(id, token)
             WHERE o.order_id = u.id AND set_config('fencepost.token', u.token::text, true) IS NOT NULL RETURNING 1""")
    assert len(gone) == 2
    assert await race.recorded("b") == (99, True)  # 40 was stale for b


async def test_a_cascade_into_a_protected_table_does_not_borrow_the_parents_token(
    connect: Connect, database: str
) -> None:
    parent = "CREATE TABLE parent (id text PRIMARY KEY)"
    race = await open_race(connect, database, ddl=parent, name="parent")
    await race.observer.execute("CREATE TABLE child (id text PRIMARY KEY, p text REFERENCES parent ON DELETE CASCADE)")
    await protect(race.observer, "child")
    await race.insert(race.a, "p", 5)
    await race.observer.execute("INSERT INTO child VALUES ('c', 'p', 90)")
    assert await outcome(race.delete(race.a, "p", 91)) == "FP428"
    assert await race.direct(race.a, "DELETE FROM public.parent", 6) == "FP409"
    assert await race.direct(race.a, "DELETE FROM public.parent", 91) == "ok"
    marks = await race.observer.fetch("SELECT resource, last_fence_token FROM fencepost.marks ORDER BY 1")
    assert [tuple(mark) for mark in marks] == [("child/c", 91), ("parent/p", 91)]


async def test_a_token_for_a_table_whose_name_begins_with_anothers_is_none_for_the_other(
    connect: Connect, database: str
) -> None:
    """a=b=36 is for the table called "a=b", and no token for the table a."""
    connection = await owner(connect)
    race = await open_race(connect, database, ddl="CREATE TABLE a (id text PRIMARY KEY)", name="a")
    await connection.execute('CREATE TABLE "a=b" (id text PRIMARY KEY)')
    await protect(connection, "a=b")
    assert await race.direct(race.a, """INSERT INTO public."a=b" VALUES ('k')""", "a=b=36") == "ok"
    assert await race.direct(race.a, "INSERT INTO public.a VALUES ('k')", "a=b=36") in ("FP428", "FP400")
