"""As races.py: claims, multi-row writes, and what the gateway answers."""

from tests.support.racing import NEW, Race, outcome, written
from tests.support.use_cases import answer_after, delete, keyed, matching, open_gateway, patch, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.use_cases import claim
from fencepost.server.postgres.many import ManyRefused, ManyWritten


async def claim_returns_what_it_fenced(race: Race) -> None:
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


async def claim_meets_an_insert_under_way(race: Race) -> None:
    """R7: a claim of a key without a row waits for an INSERT of it, and then claims the row."""
    async with open_gateway(race.dsn) as gateway:
        request = claim(gateway, Claim(Resource("orders", ("k",)), Token(35)))
        making = race.insert(race.a, "k", 33, status="from 33")
        answer = await answer_after(race, gateway, making, request=request)
    assert not isinstance(answer, Problem), answer
    assert [*answer.rows], "the claim did not see the row"
    assert await race.live_mark("k") == 35
    assert await race.update(race.c, "k", 34, status="older than the claim") is None


async def claim_meets_a_claim_under_way(race: Race) -> None:
    """R7: of two claims of a key without a row, the one that waits is judged by the mark that the other has raised."""
    for token, accepted in ((39, False), (40, not race.strict), (41, True)):
        key = f"k{token}"
        async with open_gateway(race.dsn) as gateway:
            request = claim(gateway, Claim(Resource("orders", (key,)), Token(token)))
            answer = await answer_after(race, gateway, race.claim_absent(race.a, key, 40), request=request)
        refused = "FP001" if token < 40 else "FP002"
        assert result_of(answer) == ("ok" if accepted else refused), token
        assert await race.recorded(key) == (max(token, 40), True), token


async def insert_meets_a_claim_under_way(race: Race) -> None:
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


async def many_rows_are_all_or_nothing(race: Race) -> None:
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


async def many_rows_follow_the_latest_version(race: Race) -> None:
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


async def many_rows_lock_in_key_order(race: Race) -> None:
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


async def replaced_row_is_written_after_all(race: Race) -> None:
    """R5: deleted and made anew while the UPDATE waited: neither 404 nor 409, the write goes through."""
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        deleting, making = race.delete(race.a, "k", 31), race.insert(race.a, "k", 32, status="again")
        request = patch(gateway, keyed("k", 40, status="b"))
        answer = result_of(await answer_after(race, gateway, deleting, making, request=request))
    assert answer == "ok", answer
    assert await race.live_mark("k") == 40


async def refusal_is_stale_and_not_missing(race: Race) -> None:
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


async def answer_follows_the_commit(race: Race) -> None:
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
