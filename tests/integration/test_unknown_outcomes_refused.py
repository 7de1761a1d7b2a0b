"""R15 where PostgreSQL refuses something on the way: a refusal of our own questions is none of the write."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest
from tests.support.asking import RULED, ruled
from tests.support.interleave import Connect
from tests.support.lost_answers import IN_A_HURRY, TOKEN, cut, cut_off, swallowed
from tests.support.postgres import CuttingProxy, Unmade, cutting_proxy
from tests.support.racing import Race, applied, audited_race
from tests.support.use_cases import gateway_pid, keyed, listed, once, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.postgres import connection as backends
from fencepost.server.postgres.connection import Backend
from fencepost.testing.servers.processes import PATIENCE

REKEYING = """
CREATE SEQUENCE public.made;
CREATE FUNCTION public.rekey() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.order_id := {}; RETURN NEW; END $$;
CREATE TRIGGER a_rekey BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.rekey();
"""


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    return await audited_race(connect, unmade, "strict")


async def landed(race: Race, proxy: CuttingProxy) -> None:
    """Return once a write is committed, and its answer swallowed."""

    async def is_there() -> bool:
        return await applied(race) > 0

    await swallowed(proxy, is_there)


@pytest.mark.parametrize(
    ("verb", "key"), [("post", "'made-' || nextval('public.made')"), ("put", "lower(NEW.order_id)")]
)
async def test_a_row_whose_key_a_trigger_made_is_not_made_again(race: Race, verb: str, key: str) -> None:
    """The mark of the key that was sent shows nothing then."""
    await race.observer.execute(REKEYING.format(key))
    async with cut_off(race) as (gateway, proxy):
        warm = (
            post(gateway, listed(29, {"order_id": "WARM"})) if verb == "post" else put(gateway, keyed("WARM", 29, n=0))
        )
        assert result_of(await warm) == "created", "all is prepared: now a statement comes with its token"
        await race.observer.execute("DELETE FROM public.applied")
        proxy.mute_after, proxy.mute_skips = TOKEN, 0 if verb == "post" else 1  # a PUT begins with an UPDATE
        write = asyncio.create_task(
            post(gateway, listed(31, {"order_id": "NEW"})) if verb == "post" else put(gateway, keyed("NEW", 31, n=1))
        )
        await landed(race, proxy)
        cut(proxy)
        answer = await write
    assert await applied(race) == 1
    assert isinstance(answer, Problem)
    assert answer.name == "FP009"


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_time_limit_while_the_outcome_is_asked_for_is_no_refusal_of_the_write(
    race: Race, with_key: bool
) -> None:
    async with cut_off(race, lock_timeout=0.3, times=IN_A_HURRY) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;" if with_key else TOKEN
        write = asyncio.create_task(
            patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None))
        )
        await landed(race, proxy)
        locked = await race.begin(race.b)
        table = "fencepost.idempotency" if with_key else "public.orders"
        await race.b.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        cut(proxy)
        answer = await write
        await locked.rollback()
    assert result_of(answer) == "FP009"
    assert await applied(race) == 1


async def test_a_duplicate_in_a_table_called_idempotency_is_a_duplicate(race: Race) -> None:
    """Its primary key has the same name as that of the records."""
    await race.observer.execute("ALTER INDEX public.orders_pkey RENAME TO idempotency_pkey")
    async with open_gateway(race.dsn) as gateway:
        request = replace(listed(31, {"order_id": "k"}), idempotency_key=once())
        answer = await asyncio.wait_for(post(gateway, request), PATIENCE)
    assert result_of(answer) == "23505"


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_connection_failure_of_a_trigger_is_not_the_gateways(race: Race, with_key: bool) -> None:
    """What a foreign data wrapper raises when its own server is away; nothing is ended or tried again."""
    await race.observer.execute(
        "CREATE FUNCTION public.away() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'could not connect to server \"audit\"' USING ERRCODE = '08001'; END $$;"
        "CREATE TRIGGER away AFTER UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.away()"
    )
    async with open_gateway(race.dsn) as gateway:
        pid = await gateway_pid(gateway)
        answer = await patch(gateway, replace(keyed("k", 31, n=1), idempotency_key=once() if with_key else None))
        assert await gateway_pid(gateway) == pid
    assert result_of(answer) == "08001"
    assert await race.live_mark("k") == 30


async def test_a_row_that_a_policy_hides_shows_nothing(race: Race) -> None:
    """Row security hides the row and its mark from the gateway's role: absent is not unwritten."""
    policies = (
        f"GRANT SELECT, INSERT, UPDATE ON public.orders TO {RULED}; GRANT INSERT ON public.applied TO {RULED};"
        " ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY sees ON public.orders FOR SELECT USING (status <> 'gone');"
        " CREATE POLICY writes ON public.orders FOR UPDATE USING (true) WITH CHECK (true);"
        " CREATE POLICY makes ON public.orders FOR INSERT WITH CHECK (true)"
    )
    async with (
        ruled(race.observer, race.dsn, policies) as login,
        cutting_proxy(login) as (proxy, url),
        open_gateway(url) as gateway,
    ):
        await gateway_pid(gateway)
        proxy.mute_after = TOKEN
        write = asyncio.create_task(patch(gateway, keyed("k", 31, n=1)))
        await landed(race, proxy)
        await race.observer.execute("ALTER TABLE public.orders DISABLE TRIGGER USER")
        await race.observer.execute("UPDATE public.orders SET status = 'gone'")
        await race.observer.execute("ALTER TABLE public.orders ENABLE TRIGGER USER")
        cut(proxy)
        assert result_of(await write) == "FP009"


async def test_another_clients_backend_that_has_the_old_ones_pid_is_left_alone(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway, gateway.database.for_writing() as connection:
        ours = await race.a.fetchrow("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert ours is not None
        await backends.end(connection, Backend(ours["pid"], ours["backend_start"] - timedelta(microseconds=1)))
        assert await race.a.fetchval("SELECT 1") == 1
        await backends.end(connection, Backend(ours["pid"], ours["backend_start"]))
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await race.a.fetchval("SELECT 1")
