"""Interleavings of one row's statements that the product must survive: AssertionError when a rule is broken.

They run against the product (test_races_scenarios.py), and against mutants (test_mutants*.py), which must not pass.
"""

from tests.support.racing import Race, outcome, written


async def update_waits_for_update(race: Race) -> None:
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


async def delete_waits_for_update(race: Race) -> None:
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


async def insert_waits_for_delete(race: Race) -> None:
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


async def deleted_key_remembers(race: Race) -> None:
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


async def pruned_mark_leaves_a_floor(race: Race) -> None:
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


async def old_snapshot_fails_at_the_floor(race: Race) -> None:
    """R6: a snapshot from before the prune must not read the floor of then: 40001."""
    await race.insert(race.a, "other", 1)
    old = race.c.transaction(isolation="repeatable_read")
    await old.start()
    await race.c.fetch("SELECT FROM orders")
    await race.observer.execute("SELECT fencepost.prune('orders', 31)")
    answer = await outcome(race.insert(race.c, "k", 31))
    await old.rollback()
    assert answer == "40001", answer


async def spent_token_stays_spent_for_direct_sql(race: Race) -> None:
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


async def echo_of_the_column_is_no_token(race: Race) -> None:
    """R14: an ORM that writes every column back does not pass for a holder, under either rule."""
    await race.insert(race.a, "k", 30)
    update = "UPDATE public.orders SET status = 'orm', n = 1, last_fence_token ="
    assert await race.direct(race.a, f"{update} 30") == "FP428"
    assert await race.direct(race.a, f"{update} 29") == "FP409"
    assert await race.direct(race.a, f"{update} last_fence_token") == "FP428"
    assert await race.direct(race.a, "UPDATE public.orders SET status = 'orm'") == "FP428"
    assert await race.direct(race.a, f"{update} 31") == "ok"


async def key_cannot_change(race: Race) -> None:
    """R1: a row that changed its key would live under another key's tombstone."""
    await race.insert(race.a, "k", 30)
    await race.insert(race.a, "z", 30)
    await race.delete(race.a, "z", 50)
    rename = "UPDATE public.orders SET order_id = 'z', last_fence_token = 40 WHERE order_id = 'k'"
    assert await race.direct(race.a, rename) == "FP400"
    assert await race.direct(race.a, "UPDATE public.orders SET order_id = 'z'", 60) == "FP400"
    assert await race.row("z") is None
