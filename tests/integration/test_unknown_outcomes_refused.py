"""R15 where PostgreSQL refuses something on the way: a refusal of our own questions is none of the write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.cutting_proxy import CuttingProxy, cutting_proxy
from tests.idempotency_scenarios import applied, audited_race, once
from tests.interleave import Connect, eventually
from tests.racing import Race, gateway_pid, keyed, open_gateway, posted, told

from fencepost.fencing.problems import Problem
from fencepost.gateway import operation
from fencepost.gateway.core import Gateway
from fencepost.gateway.write import patch, put
from fencepost.gateway.write_many import insert

TOKEN = b"\x00\x00\x00\x1f"  # 31, in binary
REKEYING = """
CREATE SEQUENCE public.made;
CREATE FUNCTION public.rekey() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.order_id := {}; RETURN NEW; END $$;
CREATE TRIGGER a_rekey BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.rekey();
"""


@pytest.fixture(params=["strict", "lease"])
async def race(request: pytest.FixtureRequest, connect: Connect, database: str) -> Race:
    return await audited_race(connect, database, request.param)


@asynccontextmanager
async def cut_off(race: Race, lock_timeout: float = 10) -> AsyncIterator[tuple[Gateway, CuttingProxy]]:
    async with cutting_proxy(race.dsn) as (proxy, url), open_gateway(url, lock_timeout=lock_timeout) as gateway:
        await gateway_pid(gateway)
        yield gateway, proxy


async def landed_and_cut(race: Race, proxy: CuttingProxy) -> None:
    await asyncio.wait_for(proxy.muted.wait(), 10)

    async def landed() -> bool:
        return await applied(race) > 0

    await eventually(landed)
    proxy.mute_after = None
    proxy.cut_all()


@pytest.mark.parametrize("key", ["'made-' || nextval('public.made')", "lower(NEW.order_id)"])
@pytest.mark.parametrize("verb", ["post", "put"])
async def test_a_row_whose_key_a_trigger_made_is_not_made_again(race: Race, key: str, verb: str) -> None:
    """The mark of the key that was sent says nothing then."""
    await race.observer.execute(REKEYING.format(key))
    async with cut_off(race) as (gateway, proxy):
        warm = (
            insert(gateway, posted(29, {"order_id": "WARM"}))
            if verb == "post"
            else put(gateway, keyed("WARM", 29, n=0))
        )
        assert told(await warm) == "created", "all is prepared: now a statement comes with its token"
        await race.observer.execute("DELETE FROM public.applied")
        proxy.mute_after, proxy.mute_skips = TOKEN, 0 if verb == "post" else 1  # a PUT begins with an UPDATE
        write = asyncio.create_task(
            insert(gateway, posted(31, {"order_id": "NEW"})) if verb == "post" else put(gateway, keyed("NEW", 31, n=1))
        )
        await landed_and_cut(race, proxy)
        answer = await write
    assert await applied(race) == 1
    assert isinstance(answer, Problem)
    assert answer.name == "FP009"


@pytest.mark.parametrize("with_key", [True, False])
async def test_a_time_limit_while_the_outcome_is_asked_for_is_no_refusal_of_the_write(
    race: Race, monkeypatch: pytest.MonkeyPatch, with_key: bool
) -> None:
    monkeypatch.setattr(operation, "RESOLVED_WITHIN", 0.5)
    async with cut_off(race, lock_timeout=0.3) as (gateway, proxy):
        proxy.mute_after = b"COMMIT;" if with_key else TOKEN
        write = asyncio.create_task(patch(gateway, replace(keyed("k", 31, n=1), once=once() if with_key else None)))
        await asyncio.wait_for(proxy.muted.wait(), 10)

        async def landed() -> bool:
            return await applied(race) == 1

        await eventually(landed)
        locked = await race.begin(race.b)
        table = "fencepost.idempotency" if with_key else "public.orders"
        await race.b.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        proxy.mute_after = None
        proxy.cut_all()
        answer = await write
        await locked.rollback()
    assert told(answer) == "FP009"
    assert await applied(race) == 1


async def test_a_duplicate_in_a_table_called_idempotency_is_a_duplicate(race: Race) -> None:
    """Its primary key has the same name as that of the records."""
    await race.observer.execute("ALTER INDEX public.orders_pkey RENAME TO idempotency_pkey")
    async with open_gateway(race.dsn) as gateway:
        request = replace(posted(31, {"order_id": "k"}), once=once())
        answer = await asyncio.wait_for(insert(gateway, request), 10)
    assert told(answer) == "23505"


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
        answer = await patch(gateway, replace(keyed("k", 31, n=1), once=once() if with_key else None))
        assert await gateway_pid(gateway) == pid
    assert told(answer) == "08001"
    assert await race.live_mark("k") == 30
