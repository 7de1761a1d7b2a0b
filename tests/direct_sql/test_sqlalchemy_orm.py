"""SQLAlchemy's ORM on protected tables: sync by psycopg, async by asyncpg; as the tables' owner, as a plain role."""

from sqlalchemy import delete, update
from sqlalchemy.orm import Session
from tests.direct_sql.sqlalchemy_orm import Line, Order, Orm, refused


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
