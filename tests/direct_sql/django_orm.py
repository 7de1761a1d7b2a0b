"""Django without a project: configured once in this process, and led to one database after the other."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import django
import pytest
from django.conf import settings
from django.db import DatabaseError, connection
from tests.support.recipes import run_recipe

_keys = itertools.count(1)


def new_key(what: str) -> str:
    """Return a key that no other test has."""
    return f"{what}-{next(_keys)}"


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
        order = orm.Order.objects.create(order_id=new_key("order"))
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
