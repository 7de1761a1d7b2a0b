"""What is recorded of a write behind broken glass (R14), and that no role changes it afterwards."""

from tests.support.racing import OPERATOR, REASON, ROLE, STRANGER, UPDATE, Race, count, records, run

from fencepost.server.ops.protect import protect


async def test_one_record_for_a_transaction_a_table_a_verb_and_a_statement(plain: Race) -> None:
    race = plain
    await race.observer.execute("CREATE TABLE public.other (id int PRIMARY KEY); GRANT ALL ON other TO glass_operator")
    await protect(race.observer, "other")
    many = "INSERT INTO public.orders (order_id) SELECT 'n' || i FROM generate_series(1, 20) i"
    work = [many, "UPDATE public.orders SET n = 1", UPDATE, UPDATE, "INSERT INTO public.other VALUES (1), (2)"]
    assert await run(race.a, work, login=OPERATOR) == "ok"
    found = await records(race.observer)
    assert sorted((table, verb) for table, verb, _ in found) == [
        ("orders", "INSERT"),
        ("orders", "UPDATE"),
        ("orders", "UPDATE"),
        ("other", "INSERT"),
    ]
    assert await run(race.a, work[1], login=OPERATOR) == "ok"
    assert await count(race) == 5, "another transaction"


async def test_a_record_names_who_why_and_how(plain: Race) -> None:
    race = plain
    await race.a.execute(f"SET SESSION AUTHORIZATION {OPERATOR}; SET application_name = 'psql'")
    begun = await race.observer.fetchval("SELECT clock_timestamp()")
    try:
        async with race.a.transaction():
            await race.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
            await race.a.execute(UPDATE)
    finally:
        await race.a.execute("RESET SESSION AUTHORIZATION")
    row = await race.observer.fetchrow("SELECT * FROM fencepost.break_glass_log")
    assert row is not None
    assert (row["login"], row["role"], row["reason"], row["query"]) == (OPERATOR, OPERATOR, REASON, UPDATE)
    assert row["application"] == "psql"
    assert row["at"] >= begun
    assert (row["client"] is None) == (await race.a.fetchval("SELECT inet_client_addr() IS NULL"))


async def test_a_record_keeps_the_beginning_of_a_long_statement(plain: Race) -> None:
    race = plain
    for end in "ab":  # two statements that begin alike are two
        assert await run(race.a, f"{UPDATE} /* {'x' * 100_000} {end} */", login=OPERATOR) == "ok"
    kept = await race.observer.fetch("SELECT query, digest FROM fencepost.break_glass_log")
    assert {(row["query"][:40], len(row["query"])) for row in kept} == {(UPDATE[:40], 2000)}
    assert len({row["digest"] for row in kept}) == len(kept) == 2


async def test_the_role_of_a_record_is_the_one_that_was_set(plain: Race) -> None:
    race = plain
    await race.observer.execute(f"GRANT ALL ON public.orders TO {ROLE}")
    assert await run(race.a, [f"SET LOCAL ROLE {ROLE}", UPDATE], login=OPERATOR) == "ok"
    row = await race.observer.fetchrow("SELECT login, role FROM fencepost.break_glass_log")
    assert tuple(row or ()) == (OPERATOR, ROLE)


async def test_the_log_is_append_only_for_its_owner_too(plain: Race) -> None:
    race = plain
    assert await run(race.a, UPDATE, login=OPERATOR) == "ok"
    tamper = (
        "UPDATE fencepost.break_glass_log SET reason = 'nothing'",
        "DELETE FROM fencepost.break_glass_log",
        "TRUNCATE fencepost.break_glass_log",
        "INSERT INTO fencepost.break_glass_log (name, verb, resource, reason) VALUES ('a', 'b', 'c', 'd')"
        " ON CONFLICT (xid, at, name, verb, digest) DO UPDATE SET reason = 'x'",
    )
    for statement in tamper:
        assert await race.direct(race.observer, statement) == "42501", statement
    for statement in (
        *tamper,
        "INSERT INTO fencepost.break_glass_log (name, verb, resource, reason) VALUES ('', '', '', '')",
        "SELECT FROM fencepost.break_glass_log",
        "SELECT fencepost.meet_mark('orders/k')",
    ):
        for login in (OPERATOR, STRANGER):
            assert await run(race.a, statement, glass=None, login=login) == "42501", statement
    assert await count(race) == 1


async def test_no_record_hides_another(plain: Race) -> None:
    """No role can write a harmless one first, and what is written for another reason is another record."""
    race = plain
    record = "SELECT fencepost.record_break_glass('orders', 'orders/harmless', 'UPDATE')"
    assert await run(race.a, record, login=OPERATOR) == "42501"
    trigger = (
        "CREATE TEMP TABLE mine (a int)",
        "CREATE FUNCTION pg_temp.forge() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {record.replace('SELECT', 'PERFORM')}; RETURN NULL; END $$",
        "CREATE TRIGGER forge AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION pg_temp.forge()",
        "INSERT INTO mine VALUES (1)",
    )
    another = "SET LOCAL fencepost.break_glass = 'INC-124: and another thing'"
    assert await run(race.a, [*trigger, UPDATE, UPDATE, another, UPDATE], login=OPERATOR) == "ok"
    rows = await race.observer.fetch("SELECT resource, reason FROM fencepost.break_glass_log ORDER BY reason, resource")
    assert [(row["resource"], row["reason"][:7]) for row in rows] == [
        ("orders/harmless", "INC-123"),
        ("orders/k", "INC-123"),
        ("orders/k", "INC-124"),
    ]


async def test_records_of_another_servers_transactions_do_not_hide_a_new_one(plain: Race) -> None:
    """Transaction numbers begin anew in a cluster that a dump was restored into; the log has old ones."""
    race = plain
    old = (
        "INSERT INTO fencepost.break_glass_log (at, name, verb, resource, reason, digest)"
        " VALUES ('2020-01-01', $1, $2, $3, $4, '')"
    )
    async with race.observer.transaction():
        await race.observer.execute(old, "orders", "UPDATE", "orders/k", "of another server")
        await race.observer.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
        await race.observer.execute(UPDATE)
    assert await count(race) == 2


async def test_upserts_and_merges_record_what_they_did(plain: Race) -> None:
    race = plain
    upsert = "INSERT INTO public.orders (order_id) VALUES ('{}') ON CONFLICT (order_id) DO {}"
    assert await run(race.a, upsert.format("k", "UPDATE SET n = 5"), login=OPERATOR) == "ok"
    assert [verb for _, verb, _ in await records(race.observer)] == ["UPDATE"]
    assert await run(race.a, upsert.format("k", "NOTHING"), login=OPERATOR) == "ok"
    assert await count(race) == 1, "nothing was written"
    assert await run(race.a, upsert.format("new", "NOTHING"), login=OPERATOR) == "ok"
    merge = """
        MERGE INTO public.orders o USING (VALUES ('k'), ('new'), ('more')) s(id) ON o.order_id = s.id
        WHEN MATCHED AND s.id = 'k' THEN DELETE WHEN MATCHED THEN UPDATE SET n = 7
        WHEN NOT MATCHED THEN INSERT (order_id) VALUES (s.id)"""
    assert await run(race.a, merge, login=OPERATOR) == "ok"
    assert sorted((await records(race.observer))[2:]) == [
        ("orders", "DELETE", "orders/k"), ("orders", "INSERT", "orders/more"), ("orders", "UPDATE", "orders/new"),
    ]  # fmt: skip
    assert (await race.recorded("k"), await race.live_mark("more")) == ((30, True), 0)
