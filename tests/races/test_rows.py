"""Writes of one row and of many, and claims, in bad orders; and what the gateway answers (R1 to R7, R10, R14)."""

from dataclasses import replace

from tests.races.openings import BUILTIN, EPOCH, STRICT_ON_BOTH_SERVERS, opened
from tests.support.racing import NEW, Race, mutate, outcome, written
from tests.support.use_cases import (
    answer_after,
    delete,
    keyed,
    listed,
    matching,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import NO_BODY
from fencepost.server.postgres.many import ManyRefused, ManyWritten


@opened(STRICT_ON_BOTH_SERVERS, EPOCH, BUILTIN)
async def test_update_waits_for_update(race: Race) -> None:
    """R1, R2: the second UPDATE is judged by the row as the first one left it."""
    for token, verdict in ((34, "stale"), (35, race.equal("spent")), (36, "again")):
        key = f"k{token}"
        await race.insert(race.a, key, 30)
        holder = await race.begin(race.a)
        assert await race.update(race.a, key, 35, status="a"), token
        waiter = await race.waits(race.b, outcome(race.update(race.b, key, token, status="b")))
        await holder.commit()
        answer = await waiter
        if verdict == "again":
            assert written(answer), f"token {token}: {answer}"
            assert await race.live_mark(key) == token, token
        else:
            assert answer is None, f"token {token}: {answer}"
            assert await race.verdict(key, token) == verdict, token
            assert (await race.row(key) or {})["status"] == "a", token


async def test_the_statement_alone_refuses_a_stale_update(race: Race) -> None:
    """Two lines of defence: the trigger judges nothing, and this is the gateway's own. It only stores what it is given:
    without it, the table's check would refuse the token's negative form.
    """
    line = "IF given OPERATOR(pg_catalog.>) OLD"
    await mutate(race, "{stem}_upd", line, line.replace("IF", "IF true OR"))
    await test_update_waits_for_update(race)


@opened(STRICT_ON_BOTH_SERVERS, EPOCH, BUILTIN)
async def test_delete_waits_for_update(race: Race) -> None:
    """R6: DELETE is judged by the row as the UPDATE left it."""
    for token, verdict in ((54, "stale"), (55, race.equal("spent")), (56, "again")):
        key = f"k{token}"
        await race.insert(race.a, key, 50)
        holder = await race.begin(race.a)
        assert await race.update(race.a, key, 55), token
        waiter = await race.waits(race.b, outcome(race.delete(race.b, key, token)))
        await holder.commit()
        answer = await waiter
        if verdict == "again":
            assert written(answer), f"token {token}: {answer}"
            assert await race.recorded(key) == (token, True), token
        else:
            assert answer is None, f"token {token}: {answer}"
            assert await race.verdict(key, token) == verdict, token
            assert await race.live_mark(key) == 55, token


@opened(STRICT_ON_BOTH_SERVERS, EPOCH, BUILTIN)
async def test_insert_waits_for_delete(race: Race) -> None:
    """R6: a holder that re-creates what its successor is deleting is refused. `NOT EXISTS` would let it pass."""
    for token, accepted in ((33, False), (34, not race.strict), (35, True)):
        for how in (race.insert, race.insert_one):
            key = f"k{token}-{how.__name__}"
            await race.insert(race.a, key, 32)
            holder = await race.begin(race.a)
            assert await race.delete(race.a, key, 34)
            waiter = await race.waits(race.b, outcome(how(race.b, key, token)))
            await holder.commit()
            answer = await waiter
            if accepted:
                assert written(answer), f"token {token}: {answer}"
                assert await race.recorded(key) == (token, False)
            else:
                assert answer == "FP409", f"token {token}: {answer}"
                assert await race.row(key) is None
                assert await race.recorded(key) == (34, True)


@opened(STRICT_ON_BOTH_SERVERS, EPOCH)
async def test_deleted_key_remembers(race: Race) -> None:
    """R6: a mark outlives its row, for INSERT and for the question why nothing matched."""
    await race.insert(race.a, "k", 30)
    assert await race.delete(race.a, "k", 34)
    assert await race.recorded("k") == (34, True)
    assert await outcome(race.insert(race.b, "k", 33)) == "FP409"
    assert await race.update(race.b, "k", 33) is None
    assert await race.verdict("k", 33) == "stale"
    assert await race.verdict("k", 34) == ("spent" if race.strict else "missing")
    assert await race.verdict("k", 35) == "missing"
    assert await race.insert(race.b, "k", 35)


@opened(STRICT_ON_BOTH_SERVERS, EPOCH)
async def test_pruned_mark_leaves_a_floor(race: Race) -> None:
    """R6: an INSERT that waits while its key's mark is pruned meets the floor instead."""
    for floor, token, accepted in ((30, 29, False), (40, 40, not race.strict), (50, 51, True)):
        key = f"k{token}"
        await race.insert(race.a, key, floor - 5)
        await race.delete(race.a, key, floor)
        holder = await race.begin(race.a)
        assert await race.a.fetchval("SELECT fencepost.prune('orders', $1)", floor) == 1, (floor, token)
        waiter = await race.waits(race.b, outcome(race.insert(race.b, key, token)))
        await holder.commit()
        answer = await waiter
        assert written(answer) if accepted else answer == "FP409", f"token {token}: {answer}"
        assert await race.live_mark(key) == (token if accepted else None), (floor, token)


@opened(STRICT_ON_BOTH_SERVERS)
async def test_old_snapshot_fails_at_the_floor(race: Race) -> None:
    """R6: a snapshot from before the prune must not read the floor of then: 40001."""
    await race.insert(race.a, "other", 1)
    old = race.c.transaction(isolation="repeatable_read")
    await old.start()
    await race.c.fetch("SELECT FROM orders")
    await race.observer.execute("SELECT fencepost.prune('orders', 31)")
    answer = await outcome(race.insert(race.c, "k", 31))
    await old.rollback()
    assert answer == "40001", answer


@opened(STRICT_ON_BOTH_SERVERS, EPOCH, BUILTIN)
async def test_spent_token_stays_spent_for_direct_sql(race: Race) -> None:
    """R1, R14: one transaction is one operation; the same token in a second one is refused under strict."""
    update = "UPDATE public.orders SET n = n + 1"
    await race.insert(race.a, "k", 30)
    assert await race.direct(race.a, f"{update}; {update}; {update}", 31) == "ok"
    expected = "FP409" if race.strict else "ok"
    assert await race.direct(race.a, update, 31) == expected
    assert await race.direct(race.a, "DELETE FROM public.orders", 31) == expected
    if race.strict:
        assert await race.direct(race.a, "DELETE FROM public.orders", 32) == "ok"
    again = "INSERT INTO public.orders (order_id) VALUES ('k')"
    assert await race.direct(race.a, again, 32 if race.strict else 30) == "FP409"


@opened(STRICT_ON_BOTH_SERVERS, EPOCH, BUILTIN)
async def test_echo_of_the_column_is_no_token(race: Race) -> None:
    """R14: an ORM that writes every column back does not pass for a holder, under either rule."""
    await race.insert(race.a, "k", 30)
    update = "UPDATE public.orders SET status = 'orm', n = 1, last_fence_token ="
    assert await race.direct(race.a, f"{update} 30") == "FP428"
    assert await race.direct(race.a, f"{update} 29") == "FP409"
    assert await race.direct(race.a, f"{update} last_fence_token") == "FP428"
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'orm'") == "FP428"
    assert await race.direct(race.a, f"{update} 31") == "ok"


@opened(STRICT_ON_BOTH_SERVERS, BUILTIN)
async def test_key_cannot_change(race: Race) -> None:
    """R1: a row that changed its key would live under another key's tombstone."""
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "z", 30)
    await race.delete(race.a, "z", 50)
    rename = "UPDATE public.orders SET order_id = 'z', last_fence_token = 40 WHERE order_id = 'k'"
    assert await race.direct(race.a, rename) == "FP400"
    assert await race.direct(race.a, "UPDATE public.orders SET order_id = 'z'", 60) == "FP400"
    assert await race.row("z") is None


@opened(STRICT_ON_BOTH_SERVERS, EPOCH)
async def test_claim_returns_what_it_fenced(race: Race) -> None:
    """R7: the claim's row is its own RETURNING: what the older holder wrote while the claim waited is in it."""
    await race.insert(race.a, "k", 30, status="old")
    holder = await race.begin(race.a)
    await race.update(race.a, "k", 33, status="from 33")
    waiter = await race.waits(race.b, race.claim(race.b, "k", 34))
    await holder.commit()
    row = await waiter
    assert row is not None
    assert '"status":"from 33"' in row.json
    assert (row.mark, row.resource) == (34, "orders/k")
    late = await outcome(race.update(race.c, "k", 33, status="late"))
    assert not written(late)
    assert await race.verdict("k", 33) == "stale"
    assert await race.verdict("k", 34) == race.equal("spent")


@opened(STRICT_ON_BOTH_SERVERS, BUILTIN)
async def test_claim_meets_an_insert_under_way(race: Race) -> None:
    """R7: a claim of a key without a row waits for an INSERT of it, and then claims the row."""
    async with open_gateway(race.dsn) as gateway:
        request = claim(gateway, Claim(Resource("orders", ("k",)), Token(35)))
        making = race.insert(race.a, "k", 33, status="from 33")
        answer = await answer_after(race, gateway, making, request=request)
    assert not isinstance(answer, Problem), answer
    assert [*answer.rows], "the claim did not see the row"
    assert await race.live_mark("k") == 35
    assert await race.update(race.c, "k", 34, status="older than the claim") is None


@opened(STRICT_ON_BOTH_SERVERS, EPOCH)
async def test_claim_meets_a_claim_under_way(race: Race) -> None:
    """R7: of two claims of a key without a row, the one that waits is judged by the mark that the other has raised."""
    for token, accepted in ((39, False), (40, not race.strict), (41, True)):
        key = f"k{token}"
        async with open_gateway(race.dsn) as gateway:
            request = claim(gateway, Claim(Resource("orders", (key,)), Token(token)))
            answer = await answer_after(race, gateway, race.claim_absent(race.a, key, 40), request=request)
        refused = "FP001" if token < 40 else "FP002"
        assert result_of(answer) == ("ok" if accepted else refused), token
        assert await race.recorded(key) == (max(token, 40), True), token


@opened(STRICT_ON_BOTH_SERVERS, EPOCH)
async def test_insert_meets_a_claim_under_way(race: Race) -> None:
    """R7: who claims a key without a row first keeps older holders from creating it."""
    for token, accepted in ((39, False), (40, not race.strict), (41, True)):
        key = f"k{token}"
        holder = await race.begin(race.a)
        assert await race.claim_absent(race.a, key, 40) is None, token
        waiter = await race.waits(race.b, outcome(race.insert(race.b, key, token)))
        await holder.commit()
        answer = await waiter
        assert written(answer) if accepted else answer == "FP409", f"token {token}: {answer}"
        assert await race.live_mark(key) == (token if accepted else None), token


@opened(STRICT_ON_BOTH_SERVERS, BUILTIN)
async def test_many_rows_are_all_or_nothing(race: Race) -> None:
    """R10: a row whose mark rose while we waited refuses the request, and none is written."""
    for verb in ("update", "delete"):
        keys = [f"{verb}-a", f"{verb}-b", f"{verb}-c"]
        await race.insert_rows(race.a, [{"order_id": key, "status": "new"} for key in keys], 30)
        holder = await race.begin(race.a)
        await race.update(race.a, keys[1], 45)
        many = race.update_many(race.b, 40, status="x") if verb == "update" else race.delete_many(race.b, 40)
        waiter = await race.waits(race.b, outcome(many))
        await holder.commit()
        answer = await waiter
        assert isinstance(answer, ManyRefused), answer
        assert [(r.resource, r.mark) for r in answer.rows] == [(f"orders/{keys[1]}", 45)], verb
        assert [await race.live_mark(key) for key in keys] == [30, 45, 30], verb
        for key in keys:
            assert (await race.row(key) or {})["status"] == "new"
            await race.delete(race.a, key, 90)


@opened(STRICT_ON_BOTH_SERVERS)
async def test_many_rows_follow_the_latest_version(race: Race) -> None:
    """R10: rows that left the filter are not written, rows that entered it neither, the others as they are now."""
    for key, status in (("a", "new"), ("b", "new"), ("c", "done"), ("d", "new")):
        await race.insert(race.a, key, 30, status=status, n=1)
    holder = await race.begin(race.a)
    await race.update(race.a, "b", 46, status="done")
    await race.update(race.a, "c", 46, status="new")
    await race.update(race.a, "d", 31, n=100)
    waiter = await race.waits(race.b, outcome(race.update_many(race.b, 47, status="x")))
    await holder.commit()
    answer = await waiter
    assert isinstance(answer, ManyWritten), answer
    assert len(answer.rows) == 2
    assert [await race.live_mark(key) for key in "abcd"] == [47, 46, 46, 47]
    assert (await race.row("d") or {})["n"] == 100


@opened(STRICT_ON_BOTH_SERVERS)
async def test_many_rows_lock_in_key_order(race: Race) -> None:
    """R10: two multi-row writes over rows whose heap order is not their key order do not deadlock."""
    await race.insert_rows(race.a, [{"order_id": key, "status": "new"} for key in "xab"], 30)
    await race.observer.execute("CREATE TABLE moved AS SELECT * FROM orders; SET session_replication_role = replica")
    # Key order a, b; heap order b, a.
    await race.observer.execute("DELETE FROM orders; INSERT INTO orders SELECT * FROM moved ORDER BY order_id DESC")
    await race.observer.execute("SET session_replication_role = origin")
    holder = await race.begin(race.a)
    await race.a.execute("SELECT FROM orders WHERE order_id = 'a' FOR UPDATE")
    waiter = await race.waits(race.b, outcome(race.update_many(race.b, 40, status="x")))
    answer = await outcome(race.update_many(race.a, 41, status="y"))
    assert isinstance(answer, ManyWritten), answer  # b did not hold `b` while it waited for `a`
    await holder.commit()
    assert await waiter == ManyWritten([])


@opened(STRICT_ON_BOTH_SERVERS)
async def test_replaced_row_is_written_after_all(race: Race) -> None:
    """R5: deleted and made anew while the UPDATE waited: neither 404 nor 409, the write goes through."""
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        deleting, making = race.delete(race.a, "k", 31), race.insert(race.a, "k", 32, status="again")
        request = patch(gateway, keyed("k", 40, status="b"))
        answer = result_of(await answer_after(race, gateway, deleting, making, request=request))
    assert answer == "ok", answer
    assert await race.live_mark("k") == 40


@opened(STRICT_ON_BOTH_SERVERS)
async def test_refusal_is_stale_and_not_missing(race: Race) -> None:
    """R5: when the UPDATE waited for what made it stale, the answer is 409 with the mark of now."""
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        request = patch(gateway, keyed("k", 34, status="b"))
        answer = await answer_after(race, gateway, race.update(race.a, "k", 35), request=request)
        assert isinstance(answer, Problem)
        assert (answer.name, answer.presented_token, answer.current_token) == ("FP001", 34, 35)
        request = patch(gateway, keyed("k", 36, status="b"))
        answer = await answer_after(race, gateway, race.delete(race.a, "k", 37), request=request)
        assert isinstance(answer, Problem)
        assert (answer.name, answer.current_token) == ("FP001", 37)
        assert result_of(await patch(gateway, keyed("k", 38, status="b"))) == "FP006"


@opened(STRICT_ON_BOTH_SERVERS)
async def test_a_condition_is_judged_by_the_row_as_it_was_left(race: Race) -> None:
    """Two callers have read the row with the mark 30. One is writing it, and the other's write waits: though its
    token is newer, it is refused, for it was decided from a row that is no more.
    """
    async with open_gateway(race.dsn) as gateway:
        for n, write in enumerate((patch, put, delete)):
            await race.insert(race.a, key := f"k{n}", 30)
            asked = replace(keyed(key, 40, status="b"), if_match=(30,))
            asked = replace(asked, body=NO_BODY) if write is delete else asked
            update = race.update(race.a, key, 35, status="a")
            answer = await answer_after(race, gateway, update, request=write(gateway, asked))
            assert isinstance(answer, Problem), key
            assert (answer.name, answer.current_token) == ("FP049", 35), key
            assert await race.live_mark(key) == 35, key
            assert (await race.row(key) or {})["status"] == "a", key
            assert result_of(await write(gateway, replace(asked, if_match=(30, 35)))) == "ok", key


@opened(STRICT_ON_BOTH_SERVERS)
async def test_a_row_that_is_deleted_meanwhile_meets_no_condition(race: Race) -> None:
    """The row was there when the write began to wait. A PUT under a condition does not make it anew."""
    async with open_gateway(race.dsn) as gateway:
        for n, write in enumerate((patch, put, delete)):
            for if_match in ((30,), ()):
                await race.insert(race.a, key := f"k{n}-{len(if_match)}", 30)
                asked = replace(keyed(key, 40, status="b"), if_match=if_match)
                asked = replace(asked, body=NO_BODY) if write is delete else asked
                request = write(gateway, asked)
                answer = await answer_after(race, gateway, race.delete(race.a, key, 35), request=request)
                assert result_of(answer) == "FP049", (key, if_match)
                assert await race.row(key) is None, (key, if_match)
                assert await race.recorded(key) == (35, True), (key, if_match)


@opened(STRICT_ON_BOTH_SERVERS)
async def test_answer_follows_the_commit(race: Race) -> None:
    """R4: a constraint that is checked at COMMIT refuses the write; it must not have been answered with 200."""
    await race.observer.execute(DEFERRED)
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "free", 30)
    async with open_gateway(race.dsn) as gateway:
        answer = await patch(gateway, keyed("k", 31, n=7))
        assert result_of(answer) == "23503", answer
        assert await race.live_mark("k") == 30
        await race.observer.execute("INSERT INTO kept VALUES ('k')")
        answer = await delete(gateway, matching(NEW, 32))
        assert result_of(answer) == "23503", answer
    assert [await race.live_mark(key) for key in ("k", "free")] == [30, 30]
    assert await race.recorded("free") == (30, False)


DEFERRED = """
CREATE TABLE public.depth (n integer PRIMARY KEY);
INSERT INTO public.depth VALUES (0);
ALTER TABLE public.orders ADD CONSTRAINT orders_n_fkey FOREIGN KEY (n)
  REFERENCES public.depth DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE public.kept (order_id text REFERENCES public.orders DEFERRABLE INITIALLY DEFERRED);
"""


# A row that is deleted before the trigger of its own INSERT fires leaves a mark of a key without a row (R6).
#
# Triggers fire by name, and ours last: a trigger of the user's that deletes the row comes before.

TRIGGER = """
CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.n = {n} THEN {does} END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER {name} AFTER INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.{name}()"""
DELETES = "DELETE FROM public.orders WHERE order_id = NEW.order_id;"


async def trigger(race: Race, name: str, n: int, does: str) -> None:
    """Make an AFTER INSERT trigger that does something to rows with this n."""
    await race.observer.execute(TRIGGER.format(name=name, n=n, does=does))


async def test_a_row_is_deleted_by_its_trigger(race: Race) -> None:
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


async def test_a_row_is_replaced_by_its_trigger(race: Race) -> None:
    """The row that its trigger puts in its place is there."""
    replaces = (
        f"{DELETES} INSERT INTO public.orders (order_id, n, last_fence_token)"
        " VALUES (NEW.order_id, 0, -NEW.last_fence_token);"
    )
    await trigger(race, "replaces", 1, replaces)
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id, n) VALUES ('k', 1)", 50) == "ok"
    assert (await race.live_mark("k"), await race.recorded("k")) == (50, (50, False))


async def test_a_row_is_deleted_in_returning(race: Race) -> None:
    """A function in RETURNING runs before any AFTER trigger."""
    await race.observer.execute(
        "CREATE FUNCTION public.eat(k text) RETURNS text LANGUAGE plpgsql AS"
        " 'BEGIN DELETE FROM public.orders WHERE order_id = k; RETURN k; END'"
    )
    insertion = "INSERT INTO public.orders (order_id) VALUES ('k') RETURNING public.eat(order_id)"
    assert await race.direct(race.a, insertion, 50) == "ok"
    assert (await race.row("k"), await race.recorded("k")) == (None, (50, True))


async def test_a_row_is_inserted_and_touched(race: Race) -> None:
    """A row that stays is never one that is gone, whatever its trigger does to it."""
    touches = "UPDATE public.orders SET status = 'touched' WHERE order_id = NEW.order_id;"
    await trigger(race, "touches", 1, touches)
    assert await race.direct(race.a, "INSERT INTO public.orders (order_id, n) VALUES ('k', 1)", 50) == "ok"
    assert (await race.live_mark("k"), await race.recorded("k")) == (50, (50, False))
