"""What SQLAlchemy's ORM knows of the protected tables: with and without the mark, and as a version."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import BigInteger, FetchedValue, ForeignKey, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.pool import NullPool
from tests.scenarios.orm_shop import OrmShop
from tests.support.recipes import run_recipe


class Base(DeclarativeBase):
    pass


class Order(Base):
    """Knows nothing of the fence: the column is not mapped."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    amount: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list["Line"]] = relationship(cascade="all, delete-orphan", back_populates="order")


class Line(Base):
    __tablename__ = "lines"
    line_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=FetchedValue())
    order_id: Mapped[str] = mapped_column(ForeignKey("orders.order_id"))
    what: Mapped[str] = mapped_column(default="thing")
    order: Mapped[Order] = relationship(back_populates="lines")


class OtherBase(DeclarativeBase):
    pass


class Marked(OtherBase):
    """Maps the mark as a plain column."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    amount: Mapped[int] = mapped_column(default=0)
    last_fence_token: Mapped[int | None] = mapped_column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )


class VersionedBase(DeclarativeBase):
    pass


class Versioned(VersionedBase):
    """The mark is the version that SQLAlchemy compares on its own; the database makes it."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    amount: Mapped[int] = mapped_column(default=0)
    last_fence_token: Mapped[int] = mapped_column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )
    __mapper_args__ = {"version_id_col": last_fence_token, "version_id_generator": False}  # noqa: RUF012


FencedSession: type[Session] = run_recipe("sqlalchemy")["FencedSession"]
"""Session.info["fence_token"] is the token of each of its transactions."""


_keys = itertools.count(1)


@dataclass
class Orm:
    """One driver, one role. run() gives a scenario a Session, with a token unless it is None."""

    shop: OrmShop
    driver: str
    role: str

    def run(self, scenario: Callable[[Session], None], token: int | None = None) -> None:
        info = {"fence_token": token}
        url = self.shop.url(self.role, f"postgresql+{self.driver}")
        if self.driver == "psycopg":
            engine = create_engine(url, poolclass=NullPool)
            with FencedSession(engine, info=info) as session:
                scenario(session)
            engine.dispose()
        else:
            asyncio.run(_run_async(url, info, scenario))

    def key(self, what: str) -> str:
        """Return a key that no other test has."""
        return f"{what}-{next(_keys)}"

    def order(self, mark: int = 10, lines: int = 0) -> str:
        """Insert an order with this mark, and lines with the same one; returns its key."""
        key = self.key("order")
        self.shop.sql("INSERT INTO orders (order_id, last_fence_token) VALUES ($1, $2)", key, mark)
        for _ in range(lines):
            self.shop.sql("INSERT INTO lines (order_id, last_fence_token) VALUES ($1, $2)", key, mark)
        return key

    def row(self, key: str) -> tuple[str, int, int]:
        found = self.shop.sql("SELECT status, amount, last_fence_token FROM orders WHERE order_id = $1", key)
        status, amount, mark = found[0]
        return status, amount, mark

    def lines(self, key: str) -> list[int]:
        """The marks of an order's lines."""
        rows = self.shop.sql("SELECT last_fence_token FROM lines WHERE order_id = $1 ORDER BY line_id", key)
        return [row[0] for row in rows]


async def _run_async(url: str, info: dict[str, int | None], scenario: Callable[[Session], None]) -> None:
    engine = create_async_engine(url, poolclass=NullPool)
    async with AsyncSession(engine, sync_session_class=FencedSession, info=info) as session:
        await session.run_sync(scenario)
    await engine.dispose()


def state(error: BaseException) -> str:
    """The SQLSTATE, which both drivers' errors have under this name."""
    assert isinstance(error, DBAPIError)
    code: str = error.orig.sqlstate  # type: ignore[union-attr]
    return code


def refused(session: Session, write: Callable[[], object]) -> str:
    """Flush a write that must be refused; returns its SQLSTATE, after a rollback."""
    with pytest.raises(DBAPIError) as caught:
        write()
    session.rollback()
    return state(caught.value)
