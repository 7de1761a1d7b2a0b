"""SQLAlchemy models that map the mark, as a plain role: as a column that is echoed, and as the version."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import BigInteger, FetchedValue, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import NullPool
from tests.support.recipes import run_recipe
from tests.support.shops import OrmShop, orm_shop

from fencepost.server.ops.embedded import PostgresServer

FencedSession: type[Session] = run_recipe("sqlalchemy")["FencedSession"]
"""Session.info["fence_token"] is the token of each of its transactions."""
_keys = itertools.count(1)


class Base(DeclarativeBase):
    pass


class Marked(Base):
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
    last_fence_token: Mapped[int] = mapped_column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )
    __mapper_args__ = {"version_id_col": last_fence_token, "version_id_generator": False}  # noqa: RUF012


@dataclass
class Orm:
    """Gives a scenario a Session, with a token unless it is None."""

    shop: OrmShop

    def run(self, scenario: Callable[[Session], None], token: int | None = None) -> None:
        engine = create_engine(self.shop.url("plain", "postgresql+psycopg"), poolclass=NullPool)
        with FencedSession(engine, info={"fence_token": token}) as session:
            scenario(session)
        engine.dispose()

    def order(self, mark: int) -> str:
        """Insert an order with this mark; returns its key."""
        key = f"order-{next(_keys)}"
        self.shop.sql("INSERT INTO orders (order_id, last_fence_token) VALUES ($1, $2)", key, mark)
        return key

    def row(self, key: str) -> tuple[Any, ...]:
        return self.shop.sql("SELECT status, amount, last_fence_token FROM orders WHERE order_id = $1", key)[0]


@pytest.fixture(scope="module")
def orm(postgres: PostgresServer, template: str) -> Iterator[Orm]:
    with orm_shop(postgres, template) as running:
        yield Orm(running)


def test_an_orm_that_echoes_the_mark_has_given_no_token(orm: Orm) -> None:
    key = orm.order(10)

    def echo(session: Session) -> None:
        order = session.get_one(Marked, key)
        order.status = "paid"
        for column in ("amount", "last_fence_token"):
            flag_modified(order, column)  # as an ORM that writes all columns back
        session.commit()

    with pytest.raises(DBAPIError) as caught:
        orm.run(echo)
    assert caught.value.orig.sqlstate == "FP428"  # type: ignore[union-attr]
    orm.run(echo, 36)
    assert orm.row(key) == ("paid", 0, 36)


def test_the_mark_as_the_version_that_the_database_makes(orm: Orm) -> None:
    key = orm.order(10)

    def work(session: Session) -> None:
        order = session.get_one(Versioned, key)
        order.status = "paid"
        session.flush()
        order.status = "packed"
        session.flush()
        assert order.last_fence_token == 36
        session.commit()
        # Another session writes in between: SQLAlchemy's own WHERE finds no row, before any trigger does.
        session.info["fence_token"] = 60
        assert order.status == "packed"
        orm.shop.sql("UPDATE orders SET last_fence_token = 50 WHERE order_id = $1", key)
        order.status = "shipped"
        with pytest.raises(StaleDataError):
            session.flush()
        session.rollback()
        session.delete(session.get_one(Versioned, key))
        session.commit()

    orm.run(work, 36)
    assert orm.shop.mark(key) is None
