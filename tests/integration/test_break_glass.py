"""Break-glass (R14): an operator writes without a token, for a reason, and it is recorded."""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import (
    DELETE,
    INSERT,
    OPERATOR,
    REASON,
    ROLE,
    STRANGER,
    UPDATE,
    Race,
    count,
    open_race,
    operators,
    outcome,
    racer,
    records,
    run,
)
from tests.support.servers import command
from tests.support.use_cases import keyed, listed, open_gateway, patch, post, put, result_of

from fencepost.server.fence.token import Token
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.marks import claim_absent


@pytest.fixture(params=["strict-external", "epoch-builtin"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    rule, _, source = request.param.partition("-")
    race = await open_race(connect, unmade, rule, source=source)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race


@pytest.fixture
async def plain(connect: Connect, unmade: Unmade) -> AsyncIterator[Race]:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer):
        yield race


# What PostgreSQL answers to an operator whom it refuses.


async def refusal(connection: Connection, statement: str) -> asyncpg.PostgresError:
    """PostgreSQL's answer to a statement behind broken glass."""

    async def attempt() -> None:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
            await connection.execute(statement)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await attempt()
    return refused.value


def message(error: asyncpg.PostgresError) -> str:
    return str(getattr(error, "message", ""))


# Writes behind broken glass (R14): no mark ever falls, and what the triggers refuse otherwise stays refused.


async def test_an_operator_writes_without_a_token_and_no_mark_falls(race: Race) -> None:
    assert await run(race.a, UPDATE, glass=None, login=OPERATOR) == "FP428", "the control: whole glass"
    for statement, verb in ((UPDATE, "UPDATE"), (DELETE, "DELETE"), (INSERT, "INSERT")):
        assert await run(race.a, statement, login=OPERATOR) == "ok", verb
        assert (await records(race.observer))[-1:] == [("orders", verb, "orders/k")], (statement, verb)
        assert await race.live_mark("k") == (None if verb == "DELETE" else 30), (statement, verb)
    assert await race.recorded("k") == (30, False)
    # The stale holder is refused as before, whatever the operator did.
    assert await race.update(race.a, "k", 29) is None
    assert await race.direct(race.a, UPDATE, 29) == "FP409"
    assert await race.direct(race.a, UPDATE, 30) == ("FP409" if race.strict else "ok")
    assert await race.direct(race.a, UPDATE, 31) == "ok"
    assert await count(race) == 3


async def test_a_deleted_key_stays_deleted_for_the_stale_holder(race: Race) -> None:
    assert await race.update(race.a, "k", 33)
    assert await run(race.a, DELETE, login=OPERATOR) == "ok"
    assert await race.recorded("k") == (33, True)
    assert await outcome(race.insert(race.a, "k", 32)) == "FP409"
    assert await race.direct(race.a, INSERT, 32) == "FP409"
    assert await race.insert(race.a, "k", 34)


async def test_a_new_row_is_met_by_the_first_token_of_its_key(race: Race) -> None:
    """It was never written through a fence, so every token is newer: also the very first of the built-in source."""
    if race.fence.pinned:
        await race.observer.execute("SELECT setval('fencepost.tokens', 1, false)")
    new = "INSERT INTO public.orders (order_id) VALUES ('new')"
    assert await run(race.a, new, login=OPERATOR) == "ok"
    assert await race.live_mark("new") == 0
    assert await race.recorded("new") is None
    assert isinstance(await race.claim_absent(race.b, "new", 1), Exception), "a claim meets the row"
    if race.fence.pinned:
        assert await race.observer.fetchval("SELECT nextval('fencepost.tokens')") == 1
    assert await race.verdict("new", 1) == "again"
    assert await race.update(race.b, "new", 1)
    assert await race.live_mark("new") == 1
    assert await count(race) == 1


async def test_a_token_beside_the_reason_counts_where_it_is_newer(race: Race) -> None:
    for number, statement in enumerate((UPDATE, DELETE, INSERT, UPDATE), 40):
        assert await run(race.a, statement, token=number, login=OPERATOR) == "ok"
        assert await race.live_mark("k") == (None if statement == DELETE else number)
    # Only what the token alone would not have done; of an INSERT that cannot be known.
    assert await records(race.observer) == [("orders", "INSERT", "orders/k")]
    for statement in (UPDATE, DELETE, INSERT):
        assert await run(race.a, statement, token=9, login=OPERATOR) == "ok", statement
    assert await race.live_mark("k") == 43, "an older one does not lower the mark"
    assert [verb for _, verb, _ in await records(race.observer)] == ["INSERT", "UPDATE", "DELETE", "INSERT"]


async def test_an_insert_under_the_marks_own_token_does_not_pass_unrecorded(race: Race) -> None:
    await race.delete(race.a, "k", 34)
    again = "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', 34)"
    if race.strict:
        assert await run(race.a, again, glass=None, login=OPERATOR) == "FP409"
    for statement, token in ((again, None), (INSERT, 34)):
        before = await count(race)
        assert await run(race.a, statement, token=token, login=OPERATOR) == "ok"
        assert await count(race) == before + 1
        assert await race.live_mark("k") == 34
        await run(race.a, DELETE, login=OPERATOR)
    before, fresh = await count(race), "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('fresh', 50)"
    assert await run(race.a, fresh, login=OPERATOR) == "ok"
    assert await count(race) == before + 1


async def test_a_column_value_below_the_mark_is_refused_with_a_hint_that_helps(race: Race) -> None:
    await race.delete(race.a, "k", 34)
    below = "INSERT INTO public.orders (order_id, last_fence_token) VALUES ('k', 33)"
    refused = await refusal(race.observer, below)
    assert (refused.sqlstate, message(refused)) == ("FP409", "stale token 33 for orders/k: its mark is 34")
    assert "leave last_fence_token out" in getattr(refused, "hint", "")
    assert await count(race) == 0
    assert await run(race.a, INSERT, login=OPERATOR) == "ok"
    assert await race.live_mark("k") == 34


async def test_a_key_change_and_truncate_stay_refused(race: Race) -> None:
    assert await run(race.a, "UPDATE public.orders SET order_id = 'z'", login=OPERATOR) == "FP400"
    assert await run(race.a, "UPDATE public.orders SET order_id = 'z', last_fence_token = 50") == "FP400"
    assert await run(race.a, "TRUNCATE public.orders") == "FP428"
    assert await count(race) == 0


async def test_rows_of_an_earlier_generation_can_be_repaired(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, source="builtin")
    await race.insert(race.a, "k", 30)
    await upkeep.raise_generation(race.observer, "test")
    for statement in (UPDATE, DELETE, INSERT, INSERT.replace("'k'", "'new'")):
        assert await run(race.a, statement) == "ok", statement
    token = await race.observer.fetchval("SELECT nextval('fencepost.tokens')")
    assert await race.update(race.a, "k", token)


async def test_a_floor_is_taken_up_and_does_not_fall_either(race: Race) -> None:
    await race.delete(race.a, "k", 34)
    assert await race.observer.fetchval("SELECT fencepost.prune('orders', 34)") == 1
    assert await run(race.a, INSERT, login=OPERATOR) == "ok"
    assert await race.live_mark("k") == 34
    assert await race.direct(race.a, UPDATE, 33) == "FP409"


async def test_a_table_with_a_scope(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade)
    observer = race.observer
    await observer.execute("CREATE TABLE public.items (id int PRIMARY KEY, account int NOT NULL, n int)")
    await protect(observer, "items", scope="account/{account}")
    assert await race.direct(race.a, "INSERT INTO items VALUES (1, 42, 0)", 30) == "ok"
    async with operators(observer):
        work = {
            "UPDATE": "UPDATE public.items SET n = 1",
            "INSERT": "INSERT INTO public.items VALUES (2, 42, 0), (3, 43, 0)",
            "DELETE": "DELETE FROM public.items WHERE id = 1",
        }
        for verb, statement in work.items():
            assert await run(race.a, statement, glass=None, login=OPERATOR) == "FP428"
            assert await run(race.a, statement, login=STRANGER) == "42501"
            assert await run(race.a, statement, login=OPERATOR) == "ok"
            assert (await records(observer))[-1] == ("items", verb, "account/42")
        assert await run(race.a, [work["UPDATE"], "INSERT INTO public.items VALUES (9, 44, 0)"]) == "ok"
        assert await count(race) == 5
    assert await observer.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE resource = 'account/42'") == 30
    assert await race.direct(race.a, "UPDATE items SET n = 2 WHERE account = 42", 29) == "FP409"
    assert await race.direct(race.a, "UPDATE items SET n = 2 WHERE account = 42", 31) == "ok"


# An operator behind broken glass and a holder of a token, at the same time, stepped


async def test_a_claim_waits_for_a_row_that_is_inserted_behind_glass(plain: Race) -> None:
    """Without a mark to meet at, the claim would answer "no row" while there is one that older tokens can write."""
    holder = await plain.begin(plain.a)
    await plain.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
    await plain.a.execute(INSERT.replace("'k'", "'new'"))
    claim = await plain.waits(plain.b, claim_absent(plain.b, plain.table, ("new",), Token(40), "orders/new"))
    await holder.commit()
    assert isinstance(await claim, Exception), "the claim sees the row"
    assert await plain.claim(plain.b, "new", 40)
    assert await plain.direct(plain.a, UPDATE.replace("'k'", "'new'"), 39) == "FP409"


async def test_a_row_behind_glass_waits_for_a_claim_and_does_not_undercut_it(plain: Race) -> None:
    holder = await plain.begin(plain.a)
    assert await plain.claim_absent(plain.a, "new", 40) is None
    inserting = await plain.waits(plain.b, run(plain.b, INSERT.replace("'k'", "'new'")))
    await holder.commit()
    assert await inserting == "FP409"
    assert await run(plain.b, INSERT.replace("'k'", "'new'")) == "ok", "again, and it takes the claim's mark"
    assert await plain.live_mark("new") == 40


async def test_an_operator_who_waits_for_a_newer_holder_keeps_the_newer_mark(plain: Race) -> None:
    holder = await plain.begin(plain.a)
    assert await plain.update(plain.a, "k", 60)
    waiter = await plain.waits(plain.b, run(plain.b, UPDATE))
    await holder.commit()
    assert await waiter == "ok"
    assert await plain.live_mark("k") == 60
    holder = await plain.begin(plain.a)
    assert await plain.update(plain.a, "k", 61)
    deleting = await plain.waits(plain.b, run(plain.b, DELETE))
    await holder.commit()
    assert await deleting == "ok"
    assert await plain.recorded("k") == (61, True)


# Who may break the glass (R14), with which reason, and by which ways no role can.


async def test_a_reason_has_three_letters_at_least(plain: Race) -> None:
    for reason in ("x", "ok", "  a b  ", "\t\n \n", "a\n\nb"):
        for statement in (UPDATE, INSERT.replace("'k'", "'z'"), DELETE):
            assert await run(plain.a, statement, glass=reason, login=OPERATOR) == "FP400", (reason, statement)
    assert await count(plain) == 0


async def test_an_empty_reason_leaves_the_glass_whole(plain: Race) -> None:
    assert await run(plain.a, UPDATE, glass="", login=OPERATOR) == "FP428"
    assert await run(plain.a, UPDATE, login=OPERATOR) == "ok"
    # '' and not NULL from now on in this session.
    assert await run(plain.a, UPDATE, glass=None, login=OPERATOR) == "FP428"


async def test_a_role_without_privileges_learns_what_it_lacks(plain: Race) -> None:
    for statement in (UPDATE, DELETE, INSERT.replace("'k'", "'z'")):
        assert await run(plain.a, statement, login=STRANGER) == "42501", statement
    await plain.a.execute(f"SET SESSION AUTHORIZATION {STRANGER}")
    try:
        refused = await refusal(plain.a, UPDATE)
    finally:
        await plain.a.execute("RESET SESSION AUTHORIZATION")
    assert message(refused) == f"{STRANGER} may not break the glass: fencepost.break_glass is set"
    assert getattr(refused, "detail", "") == "That is for roles which may execute fencepost.may_break_glass()."
    assert getattr(refused, "hint", "").endswith(f"GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO {STRANGER}")
    assert await run(plain.a, UPDATE, token=31, login=STRANGER) == "ok", "a good token needs no glass"
    assert await count(plain) == 0


async def test_a_role_that_another_role_made_opens_nothing(plain: Race) -> None:
    """A role that may create roles could make one of any name, and is its member: only our own privilege counts."""
    await plain.observer.execute("CREATE ROLE glass_maker LOGIN CREATEROLE; GRANT ALL ON public.orders TO glass_maker")
    try:
        make = ("DROP ROLE IF EXISTS fencepost_operators", "CREATE ROLE fencepost_operators")
        assert await run(plain.a, make, glass=None, login="glass_maker") == "ok"
        assert await run(plain.a, UPDATE, login="glass_maker") == "42501"
        grant = "GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO glass_maker"
        assert await run(plain.a, grant, glass=None, login="glass_maker") == "42501"
        await plain.observer.execute(grant)
        assert await run(plain.a, UPDATE, login="glass_maker") == "ok"
    finally:
        await plain.observer.execute("DROP OWNED BY glass_maker; DROP ROLE fencepost_operators, glass_maker")


async def test_without_such_a_role_it_is_for_who_owns_the_schema(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    async with operators(race.observer, role=False):
        assert await run(race.a, UPDATE, login=OPERATOR) == "42501"
        owner = await race.observer.fetchval(
            "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname='fencepost'"
        )
        await race.observer.execute(f"GRANT {owner} TO {OPERATOR}")
        assert await run(race.a, UPDATE, login=OPERATOR) == "ok"


async def test_a_function_that_runs_as_its_owner_does_not_open_the_case_for_its_caller(plain: Race) -> None:
    """Nor does SET ROLE close it: the login counts."""
    body = "UPDATE public.orders SET n = 9"
    await plain.observer.execute(
        f"CREATE FUNCTION public.as_owner() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ {body} $$"
    )
    assert await run(plain.a, "SELECT public.as_owner()", login=STRANGER) == "42501"
    await plain.observer.execute(f"GRANT {STRANGER} TO {OPERATOR}")
    assert await run(plain.a, [f"SET LOCAL ROLE {STRANGER}", UPDATE], login=OPERATOR) == "ok"


async def test_a_role_that_may_not_break_the_glass_records_and_learns_nothing(plain: Race) -> None:
    for call in (
        "fencepost.record_break_glass('orders', 'orders/k', 'UPDATE')",
        "fencepost.mark_behind_glass('orders', 'orders/k', NULL)",
    ):
        assert await run(plain.a, f"SELECT {call}", login=STRANGER) == "42501", call
        assert await run(plain.a, f"SELECT {call}", glass=None, login=STRANGER) == "ok", call
    assert await plain.a.fetchval("SELECT fencepost.mark_behind_glass('orders', 'orders/k', 7)") is None
    assert await count(plain) == 0


async def test_a_reason_in_the_gateways_role_opens_nothing(plain: Race, connect: Connect) -> None:
    """ALTER DATABASE, or ROLE, gives it to everybody who connects: the gateway does not take it."""
    await plain.delete(plain.a, "k", 34)
    for setting in ("fencepost.break_glass = 'left behind'", "fencepost.token = '99'"):
        name = await plain.observer.fetchval("SELECT quote_ident(current_database())")
        await plain.observer.execute(f"ALTER DATABASE {name} SET {setting}")
    ordinary = await connect()
    assert await ordinary.fetchval("SELECT current_setting('fencepost.break_glass')") == "left behind"
    assert await (await racer(connect)).fetchval("SELECT current_setting('fencepost.break_glass')") == ""
    async with open_gateway(plain.dsn) as gateway:
        assert result_of(await post(gateway, listed(34, {"order_id": "k"}))) == "FP002"
        assert result_of(await put(gateway, keyed("k", 34, n=1))) == "FP002"
        assert result_of(await put(gateway, keyed("k", 35, n=1))) == "created"
        assert result_of(await patch(gateway, keyed("k", 35, n=1))) == "FP002"
    assert await count(plain) == 0


async def test_status_shows_the_last_five_uses(plain: Race) -> None:
    async def status(*options: str) -> str:
        answered = await command("status", *options, database=plain.dsn)
        assert answered.exit_code == 0, answered.output
        return answered.output

    assert "glass" not in await status()
    assert json.loads(await status("--json"))["broken_glass"] == []
    for number in range(7):
        assert await run(plain.a, UPDATE, glass=f"INC-{number}:\n the   worker", login=OPERATOR) == "ok"
    text = await status()
    assert "done in the place of a holder, without its token" in text
    assert [f"INC-{number}: the worker" in text for number in range(7)] == [False, False] + [True] * 5
    assert text.index("INC-6") < text.index("INC-2"), "newest first"
    seen = json.loads(await status("--json"))
    assert [use["resource"] for use in seen["broken_glass"]] == ["orders/k"] * 5
    assert seen["broken_glass"][0]["login"] == OPERATOR
    assert seen["protected"][0]["name"] == "orders"
    assert [sorted(each) for each in seen["kept"]] == [["bytes", "records", "what"]] * len(seen["kept"])


# What is recorded of a write behind broken glass (R14), and that no role changes it afterwards.


async def test_one_record_for_a_transaction_a_table_a_verb_and_a_statement(plain: Race) -> None:
    await plain.observer.execute("CREATE TABLE public.other (id int PRIMARY KEY); GRANT ALL ON other TO glass_operator")
    await protect(plain.observer, "other")
    many = "INSERT INTO public.orders (order_id) SELECT 'n' || i FROM generate_series(1, 20) i"
    work = [many, "UPDATE public.orders SET n = 1", UPDATE, UPDATE, "INSERT INTO public.other VALUES (1), (2)"]
    assert await run(plain.a, work, login=OPERATOR) == "ok"
    found = await records(plain.observer)
    assert sorted((table, verb) for table, verb, _ in found) == [
        ("orders", "INSERT"),
        ("orders", "UPDATE"),
        ("orders", "UPDATE"),
        ("other", "INSERT"),
    ]
    assert await run(plain.a, work[1], login=OPERATOR) == "ok"
    assert await count(plain) == 5, "another transaction"


async def test_a_record_names_who_why_and_how(plain: Race) -> None:
    await plain.a.execute(f"SET SESSION AUTHORIZATION {OPERATOR}; SET application_name = 'psql'")
    begun = await plain.observer.fetchval("SELECT clock_timestamp()")
    try:
        async with plain.a.transaction():
            await plain.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
            await plain.a.execute(UPDATE)
    finally:
        await plain.a.execute("RESET SESSION AUTHORIZATION")
    row = await plain.observer.fetchrow("SELECT * FROM fencepost.break_glass_log")
    assert row is not None
    assert (row["login"], row["role"], row["reason"], row["query"]) == (OPERATOR, OPERATOR, REASON, UPDATE)
    assert row["application"] == "psql"
    assert row["at"] >= begun
    assert (row["client"] is None) == (await plain.a.fetchval("SELECT inet_client_addr() IS NULL"))


async def test_a_record_keeps_the_beginning_of_a_long_statement(plain: Race) -> None:
    for end in "ab":  # two statements that begin alike are two
        assert await run(plain.a, f"{UPDATE} /* {'x' * 100_000} {end} */", login=OPERATOR) == "ok"
    kept = await plain.observer.fetch("SELECT query, digest FROM fencepost.break_glass_log")
    assert {(row["query"][:40], len(row["query"])) for row in kept} == {(UPDATE[:40], 2000)}
    assert len({row["digest"] for row in kept}) == len(kept) == 2


async def test_the_role_of_a_record_is_the_one_that_was_set(plain: Race) -> None:
    await plain.observer.execute(f"GRANT ALL ON public.orders TO {ROLE}")
    assert await run(plain.a, [f"SET LOCAL ROLE {ROLE}", UPDATE], login=OPERATOR) == "ok"
    row = await plain.observer.fetchrow("SELECT login, role FROM fencepost.break_glass_log")
    assert tuple(row or ()) == (OPERATOR, ROLE)


async def test_the_log_is_append_only_for_its_owner_too(plain: Race) -> None:
    assert await run(plain.a, UPDATE, login=OPERATOR) == "ok"
    tamper = (
        "UPDATE fencepost.break_glass_log SET reason = 'nothing'",
        "DELETE FROM fencepost.break_glass_log",
        "TRUNCATE fencepost.break_glass_log",
        "INSERT INTO fencepost.break_glass_log (name, verb, resource, reason) VALUES ('a', 'b', 'c', 'd')"
        " ON CONFLICT (xid, at, name, verb, digest) DO UPDATE SET reason = 'x'",
    )
    for statement in tamper:
        assert await plain.direct(plain.observer, statement) == "42501", statement
    for statement in (
        *tamper,
        "INSERT INTO fencepost.break_glass_log (name, verb, resource, reason) VALUES ('', '', '', '')",
        "SELECT FROM fencepost.break_glass_log",
        "SELECT fencepost.meet_mark('orders/k')",
    ):
        for login in (OPERATOR, STRANGER):
            assert await run(plain.a, statement, glass=None, login=login) == "42501", statement
    assert await count(plain) == 1


async def test_no_record_hides_another(plain: Race) -> None:
    """No role can write a harmless one first, and what is written for another reason is another record."""
    record = "SELECT fencepost.record_break_glass('orders', 'orders/harmless', 'UPDATE')"
    assert await run(plain.a, record, login=OPERATOR) == "42501"
    trigger = (
        "CREATE TEMP TABLE mine (a int)",
        "CREATE FUNCTION pg_temp.forge() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {record.replace('SELECT', 'PERFORM')}; RETURN NULL; END $$",
        "CREATE TRIGGER forge AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION pg_temp.forge()",
        "INSERT INTO mine VALUES (1)",
    )
    another = "SET LOCAL fencepost.break_glass = 'INC-124: and another thing'"
    assert await run(plain.a, [*trigger, UPDATE, UPDATE, another, UPDATE], login=OPERATOR) == "ok"
    rows = await plain.observer.fetch(
        "SELECT resource, reason FROM fencepost.break_glass_log ORDER BY reason, resource"
    )
    assert [(row["resource"], row["reason"][:7]) for row in rows] == [
        ("orders/harmless", "INC-123"),
        ("orders/k", "INC-123"),
        ("orders/k", "INC-124"),
    ]


async def test_records_of_another_servers_transactions_do_not_hide_a_new_one(plain: Race) -> None:
    """Transaction numbers begin anew in a cluster that a dump was restored into; the log has old ones."""
    old = (
        "INSERT INTO fencepost.break_glass_log (at, name, verb, resource, reason, digest)"
        " VALUES ('2020-01-01', $1, $2, $3, $4, '')"
    )
    async with plain.observer.transaction():
        await plain.observer.execute(old, "orders", "UPDATE", "orders/k", "of another server")
        await plain.observer.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
        await plain.observer.execute(UPDATE)
    assert await count(plain) == 2


async def test_upserts_and_merges_record_what_they_did(plain: Race) -> None:
    upsert = "INSERT INTO public.orders (order_id) VALUES ('{}') ON CONFLICT (order_id) DO {}"
    assert await run(plain.a, upsert.format("k", "UPDATE SET n = 5"), login=OPERATOR) == "ok"
    assert [verb for _, verb, _ in await records(plain.observer)] == ["UPDATE"]
    assert await run(plain.a, upsert.format("k", "NOTHING"), login=OPERATOR) == "ok"
    assert await count(plain) == 1, "nothing was written"
    assert await run(plain.a, upsert.format("new", "NOTHING"), login=OPERATOR) == "ok"
    merge = """
        MERGE INTO public.orders o USING (VALUES ('k'), ('new'), ('more')) s(id) ON o.order_id = s.id
        WHEN MATCHED AND s.id = 'k' THEN DELETE WHEN MATCHED THEN UPDATE SET n = 7
        WHEN NOT MATCHED THEN INSERT (order_id) VALUES (s.id)"""
    assert await run(plain.a, merge, login=OPERATOR) == "ok"
    assert sorted((await records(plain.observer))[2:]) == [
        ("orders", "DELETE", "orders/k"), ("orders", "INSERT", "orders/more"), ("orders", "UPDATE", "orders/new"),
    ]  # fmt: skip
    assert (await plain.recorded("k"), await plain.live_mark("more")) == ((30, True), 0)
