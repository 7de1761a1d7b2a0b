"""Django's ORM, as a plain role, on protected tables that Django made; `fenced` is the page's recipe."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from django.db import DatabaseError, connection, transaction
from django.db.migrations import RunSQL
from django.db.migrations.state import ProjectState
from django.db.models import F
from tests.direct_sql.django_orm import fenced, lead_to, make, new_key, refused, row, shop_models, under
from tests.scenarios.orm_shop import OrmShop, orm_shop
from tests.support.recipes import recipe

from fencepost.embedded.server import PostgresServer
from fencepost.storage.protecting.protect import plan_protect, protect


@pytest.fixture(scope="module")
def app() -> Any:
    return shop_models()


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, template: str, app: Any) -> Iterator[OrmShop]:
    with orm_shop(postgres, template, sql="") as running:
        lead_to(running.owner)
        with connection.schema_editor() as editor:
            for model in (app.Order, app.Line):
                editor.create_model(model)
        connection.close()
        asyncio.run(_protect(running))
        yield running
        connection.close()


async def _protect(shop: OrmShop) -> None:
    superuser = await asyncpg.connect(shop.superuser)
    await protect(superuser, "orders")
    await protect(superuser, "lines")
    plain = urlsplit(shop.plain).username
    await superuser.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders, lines TO {plain}")
    await superuser.close()


@pytest.fixture
def orm(shop: OrmShop, app: Any) -> Iterator[SimpleNamespace]:
    """Give the models, Django being connected as the plain role."""
    lead_to(shop.plain)
    yield SimpleNamespace(Order=app.Order, Line=app.Line, MarkedOrder=app.MarkedOrder, shop=shop)
    connection.close()


def test_save_writes_all_columns_twice_in_one_operation(orm: SimpleNamespace) -> None:
    order = make(orm)
    with fenced(36):
        order.status = "paid"
        order.save()
        order.amount = 7
        order.save()
    assert row(orm, order) == ("paid", 7, 36)
    assert refused(under(36, order.save)) == "FP409"  # another transaction is another operation


def test_save_without_a_token_is_refused(orm: SimpleNamespace) -> None:
    order = make(orm)
    for model in (orm.Order, orm.MarkedOrder):
        found = model.objects.get(pk=order.pk)
        found.status = "paid"
        assert refused(found.save) == "FP428", model
        with pytest.raises(DatabaseError, match=r"(?s)a write needs a fence token.*HINT:.*SET LOCAL fencepost.token"):
            found.save()
        assert refused(model(order_id=f"{order.pk}-new").save) == "FP428", model
        assert refused(found.delete) == "FP428", model
    assert row(orm, order) == ("new", 0, 10)


def test_a_field_for_the_mark_is_an_echo_and_a_new_value_is_a_token(orm: SimpleNamespace) -> None:
    order = make(orm)
    found = orm.MarkedOrder.objects.get(pk=order.pk)
    with fenced(36):
        found.status = "paid"
        found.save()
        found.amount = 1
        found.save()  # writes 10 back, which is older than the row's 36: the setting counts
    assert row(orm, order) == ("paid", 1, 36)
    assert refused(found.save) == "FP409"  # 10 again, without a setting: stale
    found.last_fence_token = 37
    found.save()
    assert row(orm, order) == ("paid", 1, 37)
    found.refresh_from_db()
    assert refused(found.save) == "FP428"
    orm.MarkedOrder.objects.create(order_id=f"{order.pk}-new", last_fence_token=5)


def test_nested_atomic_blocks_belong_to_the_operation(orm: SimpleNamespace) -> None:
    order = make(orm)
    with fenced(36):
        with transaction.atomic():
            order.status = "paid"
            order.save()
        with transaction.atomic():
            order.status = "lost"
            order.save()
            transaction.set_rollback(True)
        with transaction.atomic():
            orm.Order.objects.filter(pk=order.pk).update(amount=F("amount") + 3)
    assert row(orm, order) == ("paid", 3, 36)


def test_a_refusal_in_a_nested_block_undoes_that_block_only(orm: SimpleNamespace) -> None:
    mine, theirs = make(orm), make(orm, 50)
    with fenced(36):
        mine.status = "paid"
        mine.save()
        with pytest.raises(DatabaseError), transaction.atomic():
            theirs.save()
        mine.amount = 1
        mine.save()
    assert row(orm, mine) == ("paid", 1, 36)
    assert row(orm, theirs) == ("new", 0, 50)


def test_the_token_ends_with_its_block(orm: SimpleNamespace) -> None:
    order = make(orm)
    with fenced(36):
        pass
    assert refused(order.save) == "FP428"
    with pytest.raises(RuntimeError), transaction.atomic(), fenced(36):  # else it would go on after the inner block
        pass


def test_a_stale_holder_is_refused_whatever_he_does(orm: SimpleNamespace) -> None:
    order, gone = make(orm, 40, lines=1), make(orm)
    under(40, lambda: orm.Order.objects.filter(pk=gone.pk).delete())()
    objects = orm.Order.objects
    write: dict[str, Callable[[], object]] = {
        "save": order.save,
        "update_fields": lambda: order.save(update_fields=["status"]),
        "update": lambda: objects.filter(pk=order.pk).update(status="paid"),
        "F": lambda: objects.filter(pk=order.pk).update(amount=F("amount") + 1),
        "bulk_update": lambda: objects.bulk_update([order], ["status", "amount"]),
        "delete": order.delete,
        "create": lambda: objects.create(order_id=gone.pk),  # his successor deleted it
        "upsert": lambda: objects.update_or_create(order_id=order.pk, defaults={"status": "paid"}),
    }
    for verb, work in write.items():
        assert refused(under(33, work)) == "FP409", verb
        assert row(orm, order) == ("new", 0, 40), verb
        assert row(orm, gone) is None, verb
        assert len(orm.shop.sql("SELECT 1 FROM lines WHERE order_id = $1", order.pk)) == 1, verb


def test_the_pages_example_runs(orm: SimpleNamespace) -> None:
    order = make(orm, lines=2)
    exec(recipe("django-use"), {"order": order, "fenced": fenced})
    assert row(orm, order) == ("shipped", 0, 36)
    assert order.lines.count() == 0


def test_bulk_create_in_its_three_ways(orm: SimpleNamespace) -> None:
    here, ahead, new = make(orm), make(orm, 50), new_key("new")
    bulk = orm.Order.objects.bulk_create
    with fenced(36):
        bulk([orm.Order(order_id=f"{new}-{n}") for n in range(50)])
        bulk([orm.Order(order_id=key) for key in (ahead.pk, new)], ignore_conflicts=True)
        bulk(
            [orm.Order(order_id=here.pk, status="up"), orm.Order(order_id=f"{new}-0", status="up")],
            update_conflicts=True,
            unique_fields=["order_id"],
            update_fields=["status"],
        )
    assert row(orm, here) == ("up", 0, 36)
    assert row(orm, ahead) == ("new", 0, 50)
    marks = "SELECT count(*), min(last_fence_token), max(last_fence_token) FROM orders WHERE starts_with(order_id, $1)"
    assert orm.shop.sql(marks, new) == [(51, 36, 36)]
    upsert = {"update_conflicts": True, "unique_fields": ["order_id"], "update_fields": ["status"]}
    assert refused(under(37, lambda: bulk([orm.Order(order_id=ahead.pk)], **upsert))) == "FP409"
    assert refused(lambda: bulk([orm.Order(order_id=f"{new}-x")])) == "FP428"


def test_get_or_create_needs_a_token_only_to_create(orm: SimpleNamespace) -> None:
    order, new = make(orm), new_key("new")
    assert orm.Order.objects.get_or_create(order_id=order.pk) == (order, False)
    assert refused(lambda: orm.Order.objects.get_or_create(order_id=new)) == "FP428"
    with fenced(36):
        assert orm.Order.objects.get_or_create(order_id=new)[1]
        assert orm.Order.objects.update_or_create(order_id=order.pk, defaults={"status": "up"})[1] is False
    assert row(orm, order) == ("up", 0, 36)


def test_djangos_cascade_is_fenced_and_stops_at_a_child_with_a_newer_mark(orm: SimpleNamespace) -> None:
    order = make(orm, lines=2)
    line = order.lines.last()
    under(50, line.save)()
    assert refused(under(36, order.delete)) == "FP409"
    assert order.lines.count() == 2
    resource = f"orders/{order.pk}"  # a key that Django forgets
    with fenced(51):
        assert order.delete() == (3, {"django_shop.Line": 2, "django_shop.Order": 1})
    assert orm.shop.sql("SELECT last_fence_token FROM fencepost.marks WHERE resource = $1", resource) == [(51,)]


async def _script(shop: OrmShop) -> str:
    superuser = await asyncpg.connect(shop.superuser)
    try:
        return (await plan_protect(superuser, "late", None, None)).script()
    finally:
        await superuser.close()


def test_a_migration_protects_a_table_with_what_protect_prints(shop: OrmShop) -> None:
    lead_to(shop.superuser)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE late (id int PRIMARY KEY)")
    script = RunSQL(asyncio.run(_script(shop)))
    with connection.schema_editor(atomic=False) as editor:
        script.database_forwards("django_shop", editor, ProjectState(), ProjectState())
    with connection.cursor() as cursor, pytest.raises(DatabaseError, match="needs a fence token"):
        cursor.execute("INSERT INTO late VALUES (1)")
    with fenced(36), connection.cursor() as cursor:
        cursor.execute("INSERT INTO late VALUES (1)")
    connection.close()
