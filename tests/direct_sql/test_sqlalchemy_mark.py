"""SQLAlchemy models that map the mark: as a column that is echoed, as a token, as the version."""

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.exc import StaleDataError
from tests.direct_sql.sqlalchemy_orm import Marked, Orm, Versioned, state


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
    assert state(caught.value) == "FP428"
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
