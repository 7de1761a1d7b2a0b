"""SQLAlchemy's ORM on protected tables: sync by psycopg, async by asyncpg; as the tables' owner, as a plain role."""

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session
from tests.direct_sql.sqlalchemy_orm import Line, Order, Orm, refused, state


def test_a_new_row_is_inserted_updated_and_deleted_in_one_transaction(orm: Orm) -> None:
    key = orm.key("new")

    def work(session: Session) -> None:
        session.add(order := Order(order_id=key))
        session.flush()
        order.status = "paid"
        session.flush()
        session.delete(order)
        session.flush()
        session.add(Order(order_id=key, status="again"))
        session.commit()

    orm.run(work, 36)
    assert orm.row(key) == ("again", 0, 36)


def test_a_session_without_a_token_is_refused_and_usable_afterwards(orm: Orm) -> None:
    key = orm.order(10, lines=1)

    def work(session: Session) -> None:
        order = session.get_one(Order, key)
        order.status = "paid"
        assert refused(session, session.flush) == "FP428"
        assert session.get_one(Order, key).status == "new"
        session.delete(session.get_one(Order, key))
        assert refused(session, session.flush) == "FP428"
        session.add(Order(order_id=f"{key}-b"))
        assert refused(session, session.commit) == "FP428"
        assert refused(session, lambda: session.execute(update(Order).values(status="x"))) == "FP428"
        assert refused(session, lambda: session.execute(delete(Line))) == "FP428"
        session.info["fence_token"] = 36
        session.get_one(Order, key).status = "paid"
        session.commit()

    orm.run(work)
    assert orm.row(key) == ("paid", 0, 36)


def test_a_stale_holder_is_refused_whatever_he_does(orm: Orm) -> None:
    key, gone = orm.order(40, lines=1), orm.order(10)

    def successor(session: Session) -> None:
        session.delete(session.get_one(Order, gone))
        session.commit()

    orm.run(successor, 40)

    def work(session: Session) -> None:
        order = session.get_one(Order, key)
        order.status = "paid"
        assert refused(session, session.flush) == "FP409"
        session.get_one(Order, key).lines[0].what = "else"
        assert refused(session, session.flush) == "FP409"
        session.delete(session.get_one(Order, key))
        assert refused(session, session.flush) == "FP409"
        session.add(Order(order_id=gone))  # his successor deleted it
        assert refused(session, session.flush) == "FP409"
        session.merge(Order(order_id=key, status="merged"))
        assert refused(session, session.flush) == "FP409"

    orm.run(work, 33)
    assert orm.row(key) == ("new", 0, 40)
    assert orm.shop.mark(gone) is None


def test_a_refusal_names_what_was_presented_and_what_the_mark_is(orm: Orm) -> None:
    key = orm.order(40)

    def work(session: Session) -> None:
        session.get_one(Order, key).status = "paid"
        with pytest.raises(DBAPIError, match=f"stale token 33 for orders/{key}: its mark is 40") as caught:
            session.flush()
        assert state(caught.value) == "FP409"
        assert not caught.value.connection_invalidated
        with pytest.raises(PendingRollbackError):
            session.execute(select(1))
        session.rollback()
        assert session.scalar(select(Order.status).where(Order.order_id == key)) == "new"

    orm.run(work, 33)


def test_savepoints_that_are_rolled_back_leave_nothing_and_hinder_nothing(orm: Orm) -> None:
    key = orm.order(10)

    def work(session: Session) -> None:
        order = session.get_one(Order, key)
        nested = session.begin_nested()
        order.amount = 1
        session.flush()
        nested.rollback()
        nested = session.begin_nested()
        session.delete(order)
        session.flush()
        nested.rollback()
        session.get_one(Order, key).status = "paid"
        session.commit()

    orm.run(work, 36)
    assert orm.row(key) == ("paid", 0, 36)


def test_a_refusal_inside_a_savepoint_undoes_the_savepoint_only(orm: Orm) -> None:
    mine, theirs = orm.order(10), orm.order(50)

    def work(session: Session) -> None:
        session.get_one(Order, mine).status = "paid"
        session.flush()
        with pytest.raises(DBAPIError) as caught, session.begin_nested():
            session.get_one(Order, theirs).status = "paid"
        assert state(caught.value) == "FP409"
        session.get_one(Order, mine).amount = 5
        session.commit()

    orm.run(work, 36)
    assert orm.row(mine) == ("paid", 5, 36)
    assert orm.row(theirs) == ("new", 0, 50)
