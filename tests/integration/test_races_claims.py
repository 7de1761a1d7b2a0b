"""R7: a claim fences before the first write, and what it answers is what no older holder can change any more."""

import asyncio
import json

from tests.support.racing import Race, gateway_pid, keyed, open_gateway, outcome, posted, result_of

from fencepost.fencing.problems import Problem
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Token
from fencepost.gateway.claims.claim import Claim
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.use_cases import claim, delete, insert, patch, put
from fencepost.testing.servers.waiting import PATIENCE


async def claimed(gateway: Gateway, key: str, token: int) -> Outcome:
    return await claim(gateway, Claim(Resource("orders", (key,)), Token(token)))


async def test_the_lost_update_that_no_write_check_sees_is_prevented_by_claiming_first(race: Race) -> None:
    await race.insert(race.a, "k", 30, n=1)
    async with open_gateway(race.dsn) as gateway:
        # Without: 34 reads, paused 33 writes, and 34 writes from what it read. Every check passes.
        read = (await race.row("k") or {})["n"]
        assert result_of(await patch(gateway, keyed("k", 33, n=100))) == "ok"
        assert result_of(await patch(gateway, keyed("k", 34, n=read + 1))) == "ok"
        assert (await race.row("k") or {})["n"] == 2
        # With: 36 claims and reads what the claim returned; 35 is refused.
        answer = await claimed(gateway, "k", 36)
        assert isinstance(answer, Done)
        assert result_of(await patch(gateway, keyed("k", 35, n=200))) == "FP001"
        assert json.loads(answer.rows[0])["n"] == 2


async def test_a_claim_spends_its_token_like_every_operation(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await claimed(gateway, "k", 30)) == ("FP002" if race.strict else "ok")
        answer = await claimed(gateway, "k", 34)
        assert isinstance(answer, Done)
        assert (answer.mark, answer.resource, len(answer.rows)) == (34, "orders/k", 1)
        assert result_of(await claimed(gateway, "k", 33)) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 34))) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 35))) == "ok"


async def test_a_claimed_key_without_a_row_refuses_every_older_write(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        answer = await claimed(gateway, "k", 40)
        assert isinstance(answer, Done)
        assert (list(answer.rows), answer.mark, answer.resource) == ([], 40, "orders/k")
        assert await race.recorded("k") == (40, True)
        assert result_of(await insert(gateway, posted(39, {"order_id": "k"}))) == "FP001"
        assert result_of(await put(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await patch(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await delete(gateway, keyed("k", 39))) == "FP001"
        assert result_of(await claimed(gateway, "k", 39)) == "FP001"
        assert result_of(await claimed(gateway, "k", 40)) == ("FP002" if race.strict else "ok")
        assert result_of(await patch(gateway, keyed("k", 41))) == "FP006"
        assert result_of(await put(gateway, keyed("k", 41))) == "created"
        assert result_of(await claimed(gateway, "k", 42)) == "ok"


async def test_a_claim_waits_for_a_delete_and_then_claims_the_key(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((33, "FP001"), (34, "FP002" if race.strict else "ok"), (35, "ok")):
            key = f"k{token}"
            await race.insert(race.a, key, 30)
            holder = await race.begin(race.a)
            await race.delete(race.a, key, 34)
            waiter = await race.waits_at(await gateway_pid(gateway), claimed(gateway, key, token))
            await holder.commit()
            assert result_of(await waiter) == answer, token
            assert await race.recorded(key) == (max(token, 34), True), token


async def test_a_claim_that_waited_for_a_delete_that_aborts_has_the_row(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.delete(race.a, "k", 34)
        waiter = await race.waits_at(await gateway_pid(gateway), claimed(gateway, "k", 33))
        await holder.rollback()
        answer = await waiter
    assert isinstance(answer, Done)
    assert len(answer.rows) == 1
    assert await race.live_mark("k") == 33
    assert await race.recorded("k") == (30, False)


async def test_a_claim_older_than_the_insert_it_waited_for_is_refused_and_raises_nothing(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.insert(race.a, "k", 33)
        waiter = await race.waits_at(await gateway_pid(gateway), claimed(gateway, "k", 32))
        await holder.commit()
        assert result_of(await waiter) == "FP001"
    assert await race.recorded("k") == (33, False)


async def test_two_claims_of_a_key_without_a_row_are_ordered(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        for token, answer in ((39, "FP001"), (40, "FP002" if race.strict else "ok"), (41, "ok")):
            key = f"k{token}"
            holder = await race.begin(race.a)
            assert await race.claim_absent(race.a, key, 40) is None, token
            waiter = await race.waits_at(await gateway_pid(gateway), claimed(gateway, key, token))
            await holder.commit()
            assert result_of(await waiter) == answer, token


async def test_an_insert_that_waits_for_a_claim_that_aborts_goes_through(race: Race) -> None:
    holder = await race.begin(race.a)
    assert await race.claim_absent(race.a, "k", 40) is None
    waiter = await race.waits(race.b, outcome(race.insert(race.b, "k", 39)))
    await holder.rollback()
    assert isinstance(await waiter, list)
    assert await race.recorded("k") == (39, False)


async def test_a_claim_at_or_below_the_floor_of_pruned_marks_is_refused(race: Race) -> None:
    """The mark of k was 30 before it was pruned: 29 must not be answered that no older holder can write now."""
    await race.insert(race.a, "k", 20)
    await race.delete(race.a, "k", 30)
    assert await race.observer.fetchval("SELECT fencepost.prune('orders', 30)") == 1
    async with open_gateway(race.dsn) as gateway:
        assert isinstance(await claimed(gateway, "k", 29), Problem)
        assert result_of(await claimed(gateway, "k", 31)) == "ok"
    assert await race.recorded("k") == (31, True)


async def test_a_row_that_row_security_hides_is_missing_for_every_verb_and_not_claimable(race: Race) -> None:
    await race.insert(race.a, "hidden", 50, n=7)
    await race.insert(race.a, "seen", 50)
    await race.observer.execute("""
        CREATE ROLE tenant; GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO tenant;
        GRANT USAGE ON SCHEMA public TO tenant;
        GRANT SELECT ON fencepost.protected TO tenant;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO tenant;
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON orders USING (n = 0)""")
    try:
        async with open_gateway(race.dsn) as gateway:
            async with gateway.database.connection() as connection:
                await connection.execute("SET ROLE tenant")
            for token in (40, 60):
                assert result_of(await patch(gateway, keyed("hidden", token))) == "FP006", token
                assert result_of(await delete(gateway, keyed("hidden", token))) == "FP006", token
                assert result_of(await claimed(gateway, "hidden", token)) == "FP006", token
            assert result_of(await patch(gateway, keyed("seen", 40))) == "FP001"
            assert result_of(await claimed(gateway, "seen", 60)) == "ok"
            no_row = await claimed(gateway, "new", 60)
            assert isinstance(no_row, Problem)
            assert "PUT it under the token" in (no_row.hint or "")
            assert result_of(await put(gateway, keyed("new", 60, n=0))) == "created"
            assert result_of(await put(gateway, keyed("new", 50, n=0))) == "FP001"
            assert await race.live_mark("hidden") == 50
            assert await race.delete(race.a, "hidden", 61)
            assert result_of(await patch(gateway, keyed("hidden", 60))) == "FP001"  # there is no row to hide any more
    finally:
        await race.observer.execute("DROP OWNED BY tenant; DROP ROLE tenant")


async def test_a_put_on_a_row_that_may_be_seen_and_not_written_ends(race: Race) -> None:
    await race.insert(race.a, "k", 50)
    await race.observer.execute("""
        CREATE ROLE reader; GRANT SELECT, INSERT, UPDATE ON orders TO reader; GRANT USAGE ON SCHEMA public TO reader;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO reader; GRANT SELECT ON fencepost.protected TO reader;
        ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY sees ON orders FOR SELECT USING (true);
        CREATE POLICY adds ON orders FOR INSERT WITH CHECK (true)""")
    try:
        async with open_gateway(race.dsn) as gateway:
            async with gateway.database.connection() as connection:
                await connection.execute("SET ROLE reader")
            async with asyncio.timeout(PATIENCE):
                assert result_of(await put(gateway, keyed("k", 60))) == "FP006"
    finally:
        await race.observer.execute("DROP OWNED BY reader; DROP ROLE reader")
    assert await race.live_mark("k") == 50


async def test_control_a_claim_that_reads_beside_itself_returns_what_an_older_holder_overwrote(race: Race) -> None:
    await race.insert(race.a, "k", 30, status="old")
    holder = await race.begin(race.a)
    await race.update(race.a, "k", 33, status="from 33")
    beside = """WITH c AS (UPDATE public.orders SET last_fence_token = 34 WHERE order_id = 'k' AND last_fence_token < 34
                           RETURNING order_id)
                SELECT o.status FROM public.orders o JOIN c USING (order_id)"""
    waiter = await race.waits(race.b, race.b.fetchval(beside))
    await holder.commit()
    assert await waiter == "old"


async def test_control_mark_and_look_in_one_statement_miss_the_row(race: Race) -> None:
    """Mark 35 stands in marks, and the living row still has 33: 34 would be accepted."""
    holder = await race.begin(race.a)
    await race.insert(race.a, "k", 33)
    together = """SELECT fencepost.raise_mark('orders/k', 35, 'strict', true) AS refused,
                         EXISTS (SELECT FROM public.orders WHERE order_id = 'k') AS found"""
    waiter = await race.waits(race.b, race.b.fetchrow(together))
    await holder.commit()
    assert tuple(await waiter or ()) == (None, False)
    assert await race.update(race.c, "k", 34) is not None
