"""Writes behind broken glass (R14): no mark ever falls, and what the triggers refuse otherwise stays refused."""

from tests.integration.break_glass.refusals import message, refusal
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import (
    DELETE,
    INSERT,
    OPERATOR,
    REASON,
    STRANGER,
    UPDATE,
    Race,
    count,
    open_race,
    operators,
    outcome,
    records,
    run,
)

from fencepost.server.fence.token import Token
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.marks import Appeared, claim_absent


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


async def claim_new(race: Race, connection: Connection, token: int) -> int | Appeared | None:
    return await claim_absent(connection, race.table, ("new",), Token(token), "orders/new")


async def test_a_claim_waits_for_a_row_that_is_inserted_behind_glass(plain: Race) -> None:
    """Without a mark to meet at, the claim would answer "no row" while there is one that older tokens can write."""
    race = plain
    holder = await race.begin(race.a)
    await race.a.execute(f"SET LOCAL fencepost.break_glass = '{REASON}'")
    await race.a.execute(INSERT.replace("'k'", "'new'"))
    claim = await race.waits(race.b, claim_new(race, race.b, 40))
    await holder.commit()
    assert isinstance(await claim, Exception), "the claim sees the row"
    assert await race.claim(race.b, "new", 40)
    assert await race.direct(race.a, UPDATE.replace("'k'", "'new'"), 39) == "FP409"


async def test_a_row_behind_glass_waits_for_a_claim_and_does_not_undercut_it(plain: Race) -> None:
    race = plain
    holder = await race.begin(race.a)
    assert await race.claim_absent(race.a, "new", 40) is None
    inserting = await race.waits(race.b, run(race.b, INSERT.replace("'k'", "'new'")))
    await holder.commit()
    assert await inserting == "FP409"
    assert await run(race.b, INSERT.replace("'k'", "'new'")) == "ok", "again, and it takes the claim's mark"
    assert await race.live_mark("new") == 40


async def test_an_operator_who_waits_for_a_newer_holder_keeps_the_newer_mark(plain: Race) -> None:
    race = plain
    holder = await race.begin(race.a)
    assert await race.update(race.a, "k", 60)
    waiter = await race.waits(race.b, run(race.b, UPDATE))
    await holder.commit()
    assert await waiter == "ok"
    assert await race.live_mark("k") == 60
    holder = await race.begin(race.a)
    assert await race.update(race.a, "k", 61)
    deleting = await race.waits(race.b, run(race.b, DELETE))
    await holder.commit()
    assert await deleting == "ok"
    assert await race.recorded("k") == (61, True)
