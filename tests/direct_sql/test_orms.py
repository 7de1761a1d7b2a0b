"""Django's ORM on protected tables, and the recipes in SQL."""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import django
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import F
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tests.support.gateways import serving
from tests.support.interleave import Connect, connection_to
from tests.support.recipes import PAGE, recipe, recipes, run, run_recipe, steps
from tests.support.shops import OrmShop, orm_shop

from fencepost.server.ops import demo
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect

# Django's ORM, as a plain role, on protected tables that Django made; `fenced` is the page's recipe.


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
    async with connection_to(shop.superuser) as superuser:
        await protect(superuser, "orders")
        await protect(superuser, "lines")
        plain = urlsplit(shop.plain).username
        await superuser.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders, lines TO {plain}")


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


# docs/direct-sql.md runs as it stands; what cannot run here is marked on the page.


@pytest.fixture
async def demo_shop(database: str) -> str:
    """Give the URL of a database with the demo's orders."""
    await demo.load(database)
    return database


def test_each_recipe_is_run_by_a_test() -> None:
    here = {"psql", "break-glass", "cron-script", "crontab", "pgoptions", "sqlalchemy-use", "alembic"}
    # Recipes that the tests of the ORMs and of replication run.
    run_elsewhere = {"django", "django-use", "sqlalchemy", "publisher", "subscriber"}
    assert set(recipes()) == here | run_elsewhere
    blocks = re.findall(r"^```(\w+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(blocks) == len(recipes()) + 2  # the first, which psql repeats, and Ruby


async def test_psql_prints_what_is_on_the_page(demo_shop: str, postgres: PostgresServer) -> None:
    for name in ("psql", "break-glass"):
        for command, expected in steps(recipe(name)):
            done = await asyncio.to_thread(run, command, postgres, demo_shop)
            assert done.stdout.rstrip("\n") == expected, command


async def test_the_first_block_runs(demo_shop: str, postgres: PostgresServer) -> None:
    first = re.search(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert first is not None
    code = first[1].replace("<token>", "36")
    done = await asyncio.to_thread(
        run, f"psql $DATABASE_URL -v ON_ERROR_STOP=1 <<'SQL'\n{code}SQL", postgres, demo_shop
    )
    assert done.stdout.split() == ["BEGIN", "SET", "UPDATE", "1", "COMMIT"]


async def test_the_crontabs_line_writes_under_its_lock_and_a_stale_one_is_refused(
    demo_shop: str, postgres: PostgresServer, connect: Connect, short_dir: Path
) -> None:
    scripts = {
        "/opt/cancel.sh": recipe("cron-script"),
        "/opt/ship.sh": "psql $DATABASE_URL -qc \"UPDATE orders SET note = 'x' WHERE order_id = 'order-124'\"",
    }
    commands = [recipe("crontab").split(maxsplit=5)[5], recipe("pgoptions")]
    for path, code in scripts.items():
        script = short_dir / Path(path).name
        script.write_text(code)
        script.chmod(0o755)
        commands = [command.replace(path, str(script)) for command in commands]
    with serving(demo_shop) as url:
        for command in commands:
            done = await asyncio.to_thread(run, command, postgres, demo_shop, FENCEPOST_URL=url)
            assert (done.returncode, done.stdout) == (0, ""), command
    reader = await connect()
    rows = await reader.fetch("SELECT status, note, last_fence_token FROM orders ORDER BY order_id OFFSET 1")
    assert [tuple(row)[:2] for row in rows] == [("paid", "x"), ("cancelled", None)]
    mark = rows[1]["last_fence_token"]
    assert mark > demo.LEASES_BEGIN
    # The machine that slept: the same script, with the token that it had.
    done = await asyncio.to_thread(run, str(short_dir / "cancel.sh"), postgres, demo_shop, FENCE_TOKEN=str(mark - 1))
    assert done.returncode == 1
    assert done.stdout.startswith(f"ERROR:  stale token {mark - 1} for orders/order-125")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


@pytest.fixture
def engine(demo_shop: str) -> Iterator[Engine]:
    made = create_engine(demo_shop.replace("postgresql", "postgresql+psycopg", 1))
    yield made
    made.dispose()


def test_the_pages_session_writes_under_its_token(engine: Engine) -> None:
    names = run_recipe("sqlalchemy") | {"engine": engine, "Order": Order}
    exec(recipe("sqlalchemy-use"), names)
    with engine.connect() as connection:
        query = "SELECT status, last_fence_token FROM orders WHERE order_id = 'order-124'"
        assert tuple(connection.execute(text(query)).one()) == ("shipped", 41)
    with pytest.raises(DBAPIError):  # the same operation a second time
        exec(recipe("sqlalchemy-use").replace("shipped", "paid"), names)


def test_the_pages_migration_protects_its_table_and_goes_back(engine: Engine) -> None:
    names = run_recipe("alembic")
    insert = "INSERT INTO invoices VALUES ('a', false)"
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        names["upgrade"]()
    with engine.begin() as connection, pytest.raises(DBAPIError, match="needs a fence token"):
        connection.execute(text(insert))
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL fencepost.token = '5'"))
        connection.execute(text(insert))
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        names["downgrade"]()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regclass('invoices')")) is None
        assert connection.scalar(text("SELECT count(*) FROM fencepost.protected")) == len(demo.COMMENTS)


def documented() -> set[str]:
    """The SQLSTATEs of the page's table."""
    rows = re.findall(r"^\| ((?:`\w{5}`(?:, )?)+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"\w{5}", row)}


def test_the_table_of_sqlstates_is_complete() -> None:
    folder = PAGE.parents[1]
    sources = folder.glob("migrations/schema/*.sql")
    raised = set(
        re.findall(
            r"(?:ERRCODE = |fencepost\.refuse\()'(FP\w{3})'", "".join(source.read_text("utf-8") for source in sources)
        )
    )
    assert {code for code in documented() if code.startswith("FP")} == raised - {"FP403", "FP000", "FP005"}
    assert documented() - raised == {"42501", "40001", "40P01"}
