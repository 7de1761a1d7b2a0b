"""SQLAlchemy's bulk writes, upserts and cascades on protected tables."""

from sqlalchemy import delete, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from tests.direct_sql.sqlalchemy_orm import Line, Order, Orm, refused


def test_bulk_inserts_of_all_kinds_carry_the_token(orm: Orm) -> None:
    keys = [orm.key("bulk") for _ in range(300)]

    def work(session: Session) -> None:
        session.add_all(Order(order_id=key, lines=[Line(), Line()]) for key in keys[:100])
        session.flush()
        session.execute(insert(Order), [{"order_id": key} for key in keys[100:200]])
        returned = session.scalars(
            insert(Order).returning(Order.order_id), [{"order_id": key} for key in keys[200:]]
        ).all()
        assert sorted(returned) == sorted(keys[200:])
        session.execute(update(Order), [{"order_id": key, "status": "paid"} for key in keys])
        session.commit()

    orm.run(work, 36)
    (found,) = orm.shop.sql(
        "SELECT count(*), min(o.last_fence_token), max(o.last_fence_token), min(o.status),"
        " (SELECT count(*) FROM lines l WHERE l.order_id = ANY ($1) AND l.last_fence_token = 36)"
        " FROM orders o WHERE order_id = ANY ($1)",
        keys,
    )
    assert found == (300, 36, 36, "paid", 200)


def test_one_stale_row_undoes_a_bulk_write(orm: Orm) -> None:
    fresh, ahead = orm.order(10), orm.order(50)

    def work(session: Session) -> None:
        both = [{"order_id": key, "status": "paid"} for key in (fresh, ahead)]
        assert refused(session, lambda: session.execute(update(Order), both)) == "FP409"
        in_both = Order.order_id.in_([fresh, ahead])
        assert refused(session, lambda: session.execute(update(Order).where(in_both).values(amount=1))) == "FP409"
        assert refused(session, lambda: session.execute(delete(Order).where(in_both))) == "FP409"

    orm.run(work, 36)
    assert orm.row(fresh) == ("new", 0, 10)


def test_on_conflict_is_judged_by_what_it_does(orm: Orm) -> None:
    here, ahead, new = orm.order(10), orm.order(50), orm.key("new")

    def work(session: Session) -> None:
        def upsert(*keys: str) -> object:
            statement = insert(Order).values([{"order_id": key, "status": "up"} for key in keys])
            return session.execute(
                statement.on_conflict_do_update(index_elements=["order_id"], set_={"status": statement.excluded.status})
            )

        upsert(here, new)
        session.execute(insert(Order).values(order_id=ahead).on_conflict_do_nothing())  # nothing is written
        session.commit()
        session.info["fence_token"] = 37
        assert refused(session, lambda: upsert(ahead)) == "FP409"

    orm.run(work, 36)
    assert orm.row(here) == ("up", 0, 36)
    assert orm.row(new) == ("up", 0, 36)
    assert orm.row(ahead) == ("new", 0, 50)


def test_the_orms_cascade_and_the_databases_are_fenced_alike(orm: Orm) -> None:
    key, other = orm.order(10, lines=3), orm.order(10, lines=1)

    def work(session: Session) -> None:
        session.delete(session.get_one(Order, key))  # loads the lines and deletes them first
        session.flush()
        session.execute(delete(Order).where(Order.order_id == other))  # ON DELETE CASCADE
        session.commit()

    orm.run(work, 36)
    assert orm.shop.mark(key) is None
    assert orm.lines(key) == orm.lines(other) == []


def test_a_cascade_stops_at_a_child_with_a_newer_mark(orm: Orm) -> None:
    key = orm.order(10, lines=2)
    orm.shop.sql("UPDATE lines SET last_fence_token = 50 WHERE line_id = (SELECT max(line_id) FROM lines)")

    def work(session: Session) -> None:
        session.delete(session.get_one(Order, key))
        assert refused(session, session.flush) == "FP409"
        assert refused(session, lambda: session.execute(delete(Order).where(Order.order_id == key))) == "FP409"
        order = session.get_one(Order, key)
        del order.lines[0]  # delete-orphan
        session.commit()

    orm.run(work, 36)
    assert orm.lines(key) == [50]


def test_the_token_ends_with_its_transaction_on_a_pooled_connection(orm: Orm) -> None:
    key = orm.order(10)

    def work(session: Session) -> None:
        connection = session.connection()
        session.execute(text("SET LOCAL fencepost.token = '36'"))
        session.get_one(Order, key).status = "paid"
        session.commit()
        session.get_one(Order, key).status = "shipped"
        assert session.connection() is not connection
        assert refused(session, session.flush) == "FP428"

    orm.run(work)
