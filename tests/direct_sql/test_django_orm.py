"""Django's ORM, as a plain role, on protected tables that Django made; `fenced` is the page's recipe."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import pytest
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import F
from tests.support.recipes import recipe, run_recipe
from tests.support.shops import OrmShop, orm_shop

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect

_keys = itertools.count(1)


def shop_models() -> Any:
    """Configure Django, unless it is configured, and return the module of the shop's models."""
    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
            INSTALLED_APPS=["tests.direct_sql.django_shop.apps.ShopConfig"],
            LOGGING_CONFIG=None,
            TIME_ZONE="UTC",
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        )
        django.setup()
    from tests.direct_sql.django_shop import models  # noqa: PLC0415 - only once Django is configured

    return models


def lead_to(url: str) -> None:
    """Connect to this address from the next query on."""
    parts = urlsplit(url)
    connection.close()
    connection.settings_dict.update(
        NAME=parts.path[1:], HOST=parts.hostname, PORT=parts.port, USER=parts.username, PASSWORD=parts.password
    )


def fenced(token: int | str) -> AbstractContextManager[None]:
    """Do as the page's recipe does."""
    block: Callable[[int | str], AbstractContextManager[None]] = run_recipe("django")["fenced"]
    return block(token)


def make(orm: SimpleNamespace, mark: int = 10, lines: int = 0) -> Any:
    """Insert an order with this mark, and lines with the same one."""
    with fenced(mark):
        order = orm.Order.objects.create(order_id=f"order-{next(_keys)}")
        for _ in range(lines):
            order.lines.create()
    return order


def row(orm: SimpleNamespace, order: Any) -> tuple[Any, ...] | None:
    """Return status, amount and mark of an order that is there."""
    found = orm.shop.sql("SELECT status, amount, last_fence_token FROM orders WHERE order_id = $1", order.pk)
    return found[0] if found else None


def refused(write: Callable[[], object]) -> str:
    """Do what must be refused; returns the SQLSTATE. The connection is usable afterwards."""
    with pytest.raises(DatabaseError) as caught:
        write()
    assert not connection.needs_rollback
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return str(caught.value.__cause__.sqlstate)


def under(token: int | str, write: Callable[[], object]) -> Callable[[], None]:
    """Make one operation of a write."""

    def run() -> None:
        with fenced(token):
            write()

    return run


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
