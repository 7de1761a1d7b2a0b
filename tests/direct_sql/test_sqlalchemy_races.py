"""Two sessions of SQLAlchemy's ORM at once, stepped: who waits for a newer holder is judged by what that one left."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from tests.direct_sql.sqlalchemy_orm import FencedSession, Order, Orm, state
from tests.scenarios.orm_shop import OrmShop
from tests.support.interleave import Connection, start


@dataclass
class Two:
    """The holder of 33, who is late, and the one of 34; both have a transaction that has begun."""

    orm: Orm
    older: AsyncSession
    newer: AsyncSession
    observer: Connection

    async def late(self) -> str:
        """Let the older one flush while the newer one's transaction is open, commit that; returns the SQLSTATE."""
        with self.older.no_autoflush:
            pid = await self.older.scalar(text("SELECT pg_backend_pid()"))
        assert isinstance(pid, int)
        flush = await start(self.observer, self.older.flush(), pid)
        assert not flush.done()
        await self.newer.commit()
        try:
            await flush
        except DBAPIError as error:
            return state(error)
        return ""


@pytest.fixture
async def two(shop_for_sqlalchemy: OrmShop) -> AsyncIterator[Two]:
    orm = Orm(shop_for_sqlalchemy, "asyncpg", "plain")
    engine = create_async_engine(orm.shop.url(orm.role, "postgresql+asyncpg"), poolclass=NullPool)
    observer = await asyncpg.connect(orm.shop.superuser)
    async with AsyncExitStack() as stack:
        older, newer = [
            await stack.enter_async_context(
                AsyncSession(engine, sync_session_class=FencedSession, info={"fence_token": token})
            )
            for token in (33, 34)
        ]
        yield Two(orm, older, newer, observer)
    await engine.dispose()
    await observer.close()


async def test_a_flush_that_waits_for_a_newer_holders_is_refused(two: Two) -> None:
    key = two.orm.order(10)
    late, early = await two.older.get_one(Order, key), await two.newer.get_one(Order, key)
    early.status, late.status = "newer", "older"
    await two.newer.flush()
    assert await two.late() == "FP409"
    await two.older.rollback()
    assert two.orm.row(key) == ("newer", 0, 34)


async def test_a_row_that_a_newer_holder_makes_anew_is_not_deleted(two: Two) -> None:
    key = two.orm.order(10)
    late = await two.older.get_one(Order, key)
    await two.newer.delete(await two.newer.get_one(Order, key))
    await two.newer.flush()
    two.newer.add(Order(order_id=key, status="newer"))
    await two.newer.flush()
    await two.older.delete(late)
    # The statement waits for the old row and then finds it gone: SQLAlchemy warns of a delete that met no row.
    with pytest.warns(match="expected to delete 1 row"):
        assert await two.late() == ""
    await two.older.commit()
    assert two.orm.row(key) == ("newer", 0, 34)


async def test_a_line_that_waits_for_its_deleted_order_is_not_left_behind(two: Two) -> None:
    key = two.orm.order(10, lines=1)
    order = await two.older.get_one(Order, key)
    line = (await two.older.run_sync(lambda _: order.lines))[0]
    line.what = "older"
    await two.newer.execute(text("DELETE FROM orders WHERE order_id = :key"), {"key": key})  # cascades
    with pytest.raises(Exception, match="expected to update 1 row"):
        await two.late()
    await two.older.rollback()
    assert two.orm.lines(key) == []
