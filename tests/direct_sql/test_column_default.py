"""A default of last_fence_token is no token: what gives an INSERT one without a word is refused, found and mended."""

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection

from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.protecting.partitions import EVENT_TRIGGERS
from fencepost.storage.protecting.protect import protect

pytestmark = pytest.mark.versions

WITHOUT_A_TOKEN = "INSERT INTO public.items (id) VALUES (1)"


@pytest.fixture(params=["plain", "partitioned"])
async def owner(request: pytest.FixtureRequest, connect: Connect) -> Connection:
    connection = await connect()
    table = "CREATE TABLE public.items (id int PRIMARY KEY)"
    if request.param == "partitioned":
        table += " PARTITION BY RANGE (id); CREATE TABLE public.items_1 PARTITION OF public.items DEFAULT"
    await connection.execute(table)
    await protect(connection, "items")
    return connection


async def found(connection: Connection) -> list[str]:
    return [finding.text for finding in await examine_tables(connection) if finding.level == "error"]


async def disable(connection: Connection) -> None:
    for trigger in EVENT_TRIGGERS:
        await connection.execute(f"ALTER EVENT TRIGGER {trigger} DISABLE")


async def test_another_default_is_refused(owner: Connection) -> None:
    for default in ("999", "-999", "(1 - 1)", "'999'", "nextval('fencepost.tokens')"):
        with pytest.raises(asyncpg.PostgresError, match="an INSERT would pass without a token") as refused:
            await owner.execute(f"ALTER TABLE public.items ALTER last_fence_token SET DEFAULT {default}")
        assert refused.value.sqlstate == "FP428", default
    assert await found(owner) == []


async def test_no_default_and_zero_are_none(owner: Connection) -> None:
    for default in ("0", "'0'", "0::bigint", "NULL"):
        await owner.execute(f"ALTER TABLE public.items ALTER last_fence_token SET DEFAULT {default}")
        assert await found(owner) == [], default
        with pytest.raises(asyncpg.PostgresError) as refused:
            await owner.execute(WITHOUT_A_TOKEN)
        assert refused.value.sqlstate == "FP428", default


async def test_without_event_triggers_doctor_finds_it_and_protect_sets_it_back(owner: Connection) -> None:
    await disable(owner)
    await owner.execute("ALTER TABLE public.items ALTER last_fence_token SET DEFAULT 999")
    assert any("the default of last_fence_token is not 0 in items" in text for text in await found(owner))
    await protect(owner, "items")
    assert await found(owner) == []
    with pytest.raises(asyncpg.PostgresError) as refused:
        await owner.execute(WITHOUT_A_TOKEN)
    assert refused.value.sqlstate == "FP428"
