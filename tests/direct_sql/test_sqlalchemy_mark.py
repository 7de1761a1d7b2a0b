"""SQLAlchemy models that map the mark: as a column that is echoed, as a token, as the version."""

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.exc import StaleDataError
from tests.direct_sql.sqlalchemy_orm import Generated, Marked, Orm, Versioned, refused, state


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


def test_an_echo_of_an_older_mark_is_stale(orm: Orm) -> None:
    key = orm.order(10)

    def work(session: Session) -> None:
        order = session.get_one(Marked, key)
        session.commit()
        orm.shop.sql("UPDATE orders SET last_fence_token = 40 WHERE order_id = $1", key)
        order.status = "paid"
        order.last_fence_token = 10
        flag_modified(order, "last_fence_token")
        assert refused(session, session.flush) == "FP409"

    orm.run(work)


def test_a_new_value_of_the_column_is_the_token(orm: Orm) -> None:
    key, new = orm.order(10), orm.key("new")

    def work(session: Session) -> None:
        order = session.get_one(Marked, key)
        order.status, order.last_fence_token = "paid", 36
        session.add(Marked(order_id=new, last_fence_token=36))
        session.commit()
        order.status, order.last_fence_token = "shipped", 35
        assert refused(session, session.flush) == "FP409"
        # Within one transaction the second flush has no token, and needs none: the row version is its own.
        order = session.get_one(Marked, key)
        order.status, order.last_fence_token = "packed", 37
        session.flush()
        order.status = "shipped"
        session.commit()
        order.status = "returned"
        assert refused(session, session.flush) == "FP428"

    orm.run(work)
    assert orm.row(key) == ("shipped", 0, 37)
    assert orm.row(new) == ("new", 0, 36)


def test_a_mapped_mark_is_read_again_after_each_flush(orm: Orm) -> None:
    key = orm.order(10)

    def work(session: Session) -> None:
        order = session.get_one(Marked, key)
        order.status = "paid"
        session.flush()
        assert order.last_fence_token == 36
        session.add(new := Marked(order_id=f"{key}-new"))
        session.flush()
        assert new.last_fence_token == 36
        session.commit()

    orm.run(work, 36)


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


def test_the_mark_as_a_version_with_a_generator_of_tokens(orm: Orm) -> None:
    key = orm.key("generated")

    def work(session: Session) -> None:
        session.add(order := Generated(order_id=key))
        session.flush()
        order.status = "paid"
        session.flush()  # a token of its own each time
        order.status = "shipped"
        session.commit()
        assert orm.shop.mark(key) == order.last_fence_token
        assert order.last_fence_token >= 1002
        session.delete(order)  # DELETE writes no column, so nothing has the token
        assert refused(session, session.flush) == "FP428"

    orm.run(work)
    assert orm.row(key)[0] == "shipped"
