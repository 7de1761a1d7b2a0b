"""Idempotency keys in bad orders, step by step (R16). Each must fail when the line that it is about is taken out."""

import asyncio
from dataclasses import replace

from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race
from tests.support.use_cases import gateway_pid, keyed, open_gateway, patch, result_of
from tests.support.violations import promised

from fencepost.server.fence.token import Rule
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.rounds import Replayed
from fencepost.server.gateway.write import IdempotencyKey
from fencepost.server.postgres import keyed as idempotency
from fencepost.server.postgres.keyed import Recorded
from fencepost.testing.servers.processes import PATIENCE

AUDIT = """
CREATE TABLE public.applied (id bigint GENERATED ALWAYS AS IDENTITY, verb text, order_id text);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.applied (verb, order_id) VALUES (TG_OP, coalesce(NEW.order_id, OLD.order_id));
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.audit();
"""

RECORD = """
INSERT INTO fencepost.idempotency (caller, key, payload_hash, status, headers, answer)
VALUES ('', 'k1', 'payload', 200, '{}', 'theirs')"""
LOOK_UP_AGAIN = "SELECT * INTO r FROM fencepost.idempotency i WHERE i.caller = p_caller AND i.key = p_key;"
TRY = "IF NOT pg_try_advisory_xact_lock"


async def audited_race(connect: Connect, database: Unmade | str, rule: Rule, *, counting: bool = True) -> Race:
    """Give the order k with mark 30, and count every write that lands. Not `counting`: writes go in batches."""
    race = await open_race(connect, database, rule)
    await race.insert(race.a, "k", 30)
    if counting:
        await race.observer.execute(AUDIT)
    return race


async def applied(race: Race) -> int:
    count: int = await race.observer.fetchval("SELECT count(*) FROM public.applied")
    return count


async def assert_applied(race: Race, count: int) -> None:
    """Hold against the audit's count how many writes landed: an effect twice, or one that is lost, is a violation."""
    if await race.observer.fetchval("SELECT to_regclass('public.applied') IS NOT NULL"):
        promised((found := await applied(race)) == count, f"{found} effects in place of {count}")
        return
    changed = any([await _exists(race, f"FROM {table} WHERE n <> 0") for table in await _written(race)])
    if count > 0:
        promised(changed or await has_landed(race), f"no effect in place of {count}")
    else:
        promised(not changed, "an effect in place of none")


async def has_landed(race: Race) -> bool:
    """Whether a write has raised a mark above that of the order k."""
    tables = ["fencepost.marks", *await _written(race)]
    return any([await _exists(race, f"FROM {table} WHERE last_fence_token > 30") for table in tables])


async def _written(race: Race) -> list[str]:
    """Return which of the two tables that tests write are there."""
    tables: list[str] = await race.observer.fetchval(
        "SELECT array_agg(t) FROM unnest('{public.orders,public.items}'::text[]) t WHERE to_regclass(t) IS NOT NULL"
    )
    return tables


async def _exists(race: Race, where: str) -> bool:
    found: bool = await race.observer.fetchval(f"SELECT EXISTS (SELECT {where})")
    return found


def once(name: str = "k1", payload: bytes = b"payload") -> IdempotencyKey:
    return IdempotencyKey(name, payload)


async def two_racers_with_one_key_land_once(race: Race) -> None:
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


async def a_record_that_commits_between_look_up_and_lock_is_seen(race: Race) -> None:
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
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        await race.observer.execute(RECORD)
        await step.commit()
        answer = await write
    assert isinstance(answer, Replayed)
    assert answer.answer == Recorded(200, (), b"theirs")
    assert await applied(race) == 0


async def a_lock_that_was_got_around_ends_in_a_replay(race: Race) -> None:
    """Another request's record is there at the end although no transaction had the key's lock."""
    async with open_gateway(race.dsn) as gateway:
        holder = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        pid = await gateway_pid(gateway)
        write = await race.waits_at(pid, patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())))
        await race.observer.execute(RECORD)
        await holder.commit()
        answer = await write
    assert isinstance(answer, Replayed)
    assert answer.answer == Recorded(200, (), b"theirs")
    assert await applied(race) == 0


async def a_refusal_gives_its_key_back(race: Race) -> None:
    # A session in which users' code ran gives up all its locks afterwards. Without it, this keeps the write alone.
    alone = "ALTER TABLE public.orders ADD UNIQUE (order_id, n) DEFERRABLE"
    await race.observer.execute(f"DROP TRIGGER audit ON public.orders; {alone}")
    async with open_gateway(race.dsn) as gateway:
        refused = await patch(gateway, replace(keyed("k", 29, n=1), idempotency_key=once()))
        assert result_of(refused) == "FP001"
        assert await race.observer.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"


async def a_key_is_for_one_payload(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"
        other = await patch(gateway, replace(keyed("k", 32, n=2), idempotency_key=once(payload=b"other")))
        assert result_of(other) == "FP014"
    assert await applied(race) == 1


async def a_write_that_landed_is_replayed_after_the_lock_changed_hands(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once()))) == "ok"
        assert result_of(await patch(gateway, keyed("k", 40, n=2))) == "ok"
        assert isinstance(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())), Replayed)
        assert result_of(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once("k2")))) == "FP001"
    assert await race.live_mark("k") == 40
    assert await applied(race) == 2


async def a_write_that_landed_is_replayed_after_its_lock_changed_hands(race: Race) -> None:
    """Another client looks at the same key at this moment: that is no reason to answer that it is in flight."""
    await race.observer.execute(RECORD)
    await race.begin(race.a)
    await race.a.execute("SELECT pg_advisory_xact_lock(hashtextextended('0:k1', 7234))")
    async with open_gateway(race.dsn) as gateway:
        assert isinstance(await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once())), Replayed)
        other = await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once("k2")))
        assert result_of(other) == "ok", "another key, another lock"


async def only_old_records_are_forgotten(race: Race) -> None:
    await race.observer.execute(RECORD)
    await race.observer.execute(RECORD.replace("'k1'", "'old'"))
    await race.observer.execute(
        "UPDATE fencepost.idempotency SET created_at = created_at - interval '61 s' WHERE key = 'old'"
    )
    assert await idempotency.prune(race.observer, 60) == 1
    assert await race.observer.fetchval("SELECT array_agg(key) FROM fencepost.idempotency") == ["k1"]
    assert await idempotency.prune(race.observer, 60) == 0


ALL = (
    two_racers_with_one_key_land_once, a_record_that_commits_between_look_up_and_lock_is_seen,
    a_lock_that_was_got_around_ends_in_a_replay, a_refusal_gives_its_key_back, a_key_is_for_one_payload,
    a_write_that_landed_is_replayed_after_the_lock_changed_hands,
    a_write_that_landed_is_replayed_after_its_lock_changed_hands, only_old_records_are_forgotten,
)  # fmt: skip
