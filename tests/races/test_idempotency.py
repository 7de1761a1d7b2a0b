"""Idempotency keys in bad orders, step by step (R16)."""

import asyncio
from dataclasses import replace

import pytest
from asyncpg.transaction import Transaction
from tests.races.openings import on_audited_table, opened
from tests.support.racing import Race, applied
from tests.support.use_cases import gateway_pid, keyed, once, open_gateway, patch, result_of

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Done
from fencepost.server.postgres import keyed as idempotency
from fencepost.testing.servers.processes import PATIENCE

STRICT, EPOCH = on_audited_table("strict"), on_audited_table("epoch")
pytestmark = opened(EPOCH)


RECORD = """
INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows)
VALUES ('', 'k1', 'payload', '{}', 'theirs')"""
LOOK_UP_AGAIN = "SELECT * INTO r FROM fencepost.idempotency i WHERE i.caller = p_caller AND i.key = p_key;"
TRY = "IF NOT pg_try_advisory_xact_lock"


async def test_two_racers_with_one_key_land_once(race: Race) -> None:
    async with open_gateway(race.dsn) as one, open_gateway(race.dsn, lock_timeout=1) as two:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        first = await race.waits_at(
            await gateway_pid(one), patch(one, replace(keyed("k", 31, n=1), idempotency_key=once()))
        )
        second = await asyncio.wait_for(patch(two, replace(keyed("k", 32, n=1), idempotency_key=once())), PATIENCE)
        await holder.commit()
        assert result_of(second) == "FP013", "it does not wait"
        assert isinstance(await first, Done)
        assert isinstance(await patch(two, replace(keyed("k", 32, n=1), idempotency_key=once())), Replayed)
    assert await applied(race) == 1


async def their_record_is_replayed(race: Race, gateway: Gateway, holder: Transaction) -> None:
    """While a write waits for what the holder has locked, another request's record of its key commits."""
    pid = await gateway_pid(gateway)
    write = await race.waits_at(pid, patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
    await race.observer.execute(RECORD)
    await holder.commit()
    answer = await write
    assert isinstance(answer, Replayed)
    assert answer.rows == ["theirs"]
    assert await applied(race) == 0


async def test_a_record_that_commits_between_look_up_and_lock_is_seen(race: Race) -> None:
    """The second look-up is a statement of its own: the step between the two is held open by a lock of the test's."""
    begin = await race.observer.fetchval(
        "SELECT pg_get_functiondef('fencepost.idem_begin(text, text, bytea)'::regprocedure)"
    )
    held_open = "PERFORM pg_advisory_xact_lock(4242);\n    " + TRY
    assert TRY in begin
    await race.observer.execute(begin.replace(TRY, held_open))
    step = await race.begin(race.b)
    await race.b.execute("SELECT pg_advisory_xact_lock(4242)")
    async with open_gateway(race.dsn) as gateway:
        await their_record_is_replayed(race, gateway, step)


async def test_a_lock_that_was_got_around_ends_in_a_replay(race: Race) -> None:
    """Another request's record is there at the end although no transaction had the key's lock."""
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        await their_record_is_replayed(race, gateway, holder)


async def test_a_refusal_gives_its_key_back(race: Race) -> None:
    # A session in which users' code ran gives up all its locks afterwards. Without it, this keeps the write alone.
    alone = "ALTER TABLE public.orders ADD UNIQUE (order_id, n) DEFERRABLE"
    await race.observer.execute(f"DROP TRIGGER audit ON public.orders; {alone}")
    async with open_gateway(race.dsn) as gateway:
        refused = await patch(gateway, replace(keyed("k", 29, n=1), idempotency_key=once()))
        assert result_of(refused) == "FP001"
        assert await race.observer.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"


async def test_a_key_is_for_one_payload(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"
        other = await patch(gateway, replace(keyed("k", 32, n=2), idempotency_key=once(payload=b"other")))
        assert result_of(other) == "FP014"
    assert await applied(race) == 1


@opened(EPOCH, STRICT)
async def test_a_write_that_landed_is_replayed_after_the_lock_changed_hands(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"
        assert result_of(await patch(gateway, keyed("k", 40, n=2))) == "ok"
        assert isinstance(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())), Replayed)
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once("k2")))) == "FP001"
    assert await race.live_mark("k") == 40
    assert await applied(race) == 2


async def test_a_write_that_landed_is_replayed_after_its_lock_changed_hands(race: Race) -> None:
    """Another client looks at the same key at this moment: that is no reason to answer that it is in flight."""
    await race.observer.execute(RECORD)
    await race.begin(race.a)
    await race.a.execute("SELECT pg_advisory_xact_lock(hashtextextended('0:k1', 7234))")
    async with open_gateway(race.dsn) as gateway:
        assert isinstance(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())), Replayed)
        other = await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once("k2")))
        assert result_of(other) == "ok", "another key, another lock"


async def test_only_old_records_are_forgotten(race: Race) -> None:
    await race.observer.execute(RECORD)
    await race.observer.execute(RECORD.replace("'k1'", "'old'"))
    await race.observer.execute(
        "UPDATE fencepost.idempotency SET created_at = created_at - interval '61 s' WHERE key = 'old'"
    )
    assert await idempotency.prune(race.observer, 60) == 1
    assert await race.observer.fetchval("SELECT array_agg(key) FROM fencepost.idempotency") == ["k1"]
    assert await idempotency.prune(race.observer, 60) == 0


async def test_the_second_look_up_needs_no_error_to_see_a_record(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines of defence: without that of the primary key, the second look-up alone has to see it, and does."""
    monkeypatch.setattr("fencepost.server.gateway.idempotency.RECORD", ("another", "key", "23505"))
    await test_a_record_that_commits_between_look_up_and_lock_is_seen(race)
