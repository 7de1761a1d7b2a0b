"""docs/direct-sql.md runs as it stands; what cannot run here is marked on the page."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tests.support.gateways import serving
from tests.support.interleave import Connect
from tests.support.recipes import PAGE, recipe, recipes, run, run_recipe, steps

from fencepost.server.ops import demo
from fencepost.server.ops.embedded import PostgresServer

RUN_ELSEWHERE = {"django", "django-use", "sqlalchemy", "publisher", "subscriber"}
"""Recipes that the tests of the ORMs and of replication run."""


@pytest.fixture
async def shop(database: str) -> str:
    """Give the URL of a database with the demo's orders."""
    await demo.load(database)
    return database


def test_each_recipe_is_run_by_a_test() -> None:
    here = {"psql", "break-glass", "cron-script", "crontab", "pgoptions", "sqlalchemy-use", "alembic"}
    assert set(recipes()) == here | RUN_ELSEWHERE
    blocks = re.findall(r"^```(\w+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(blocks) == len(recipes()) + 2  # the first, which psql repeats, and Ruby


async def test_psql_prints_what_is_on_the_page(shop: str, postgres: PostgresServer) -> None:
    for name in ("psql", "break-glass"):
        for command, expected in steps(recipe(name)):
            done = await asyncio.to_thread(run, command, postgres, shop)
            assert done.stdout.rstrip("\n") == expected, command


async def test_the_first_block_runs(shop: str, postgres: PostgresServer) -> None:
    first = re.search(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert first is not None
    code = first[1].replace("<token>", "36")
    done = await asyncio.to_thread(run, f"psql $DATABASE_URL -v ON_ERROR_STOP=1 <<'SQL'\n{code}SQL", postgres, shop)
    assert done.stdout.split() == ["BEGIN", "SET", "UPDATE", "1", "COMMIT"]


async def test_the_crontabs_line_writes_under_its_lock_and_a_stale_one_is_refused(
    shop: str, postgres: PostgresServer, connect: Connect, short_dir: Path
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
    with serving(shop) as url:
        for command in commands:
            done = await asyncio.to_thread(run, command, postgres, shop, FENCEPOST_URL=url)
            assert (done.returncode, done.stdout) == (0, ""), command
    reader = await connect()
    rows = await reader.fetch("SELECT status, note, last_fence_token FROM orders ORDER BY order_id OFFSET 1")
    assert [tuple(row)[:2] for row in rows] == [("paid", "x"), ("cancelled", None)]
    mark = rows[1]["last_fence_token"]
    assert mark > demo.LEASES_BEGIN
    # The machine that slept: the same script, with the token that it had.
    done = await asyncio.to_thread(run, str(short_dir / "cancel.sh"), postgres, shop, FENCE_TOKEN=str(mark - 1))
    assert done.returncode == 1
    assert done.stdout.startswith(f"ERROR:  stale token {mark - 1} for orders/order-125")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


@pytest.fixture
def engine(shop: str) -> Iterator[Engine]:
    made = create_engine(shop.replace("postgresql", "postgresql+psycopg", 1))
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
    sources = [
        *folder.glob("migrations/schema/*.sql"),
        folder / "app/fencepost/server/ops/functions.py",
    ]
    raised = set(
        re.findall(
            r"(?:ERRCODE = |fencepost\.refuse\()'(FP\w{3})'", "".join(source.read_text("utf-8") for source in sources)
        )
    )
    assert {code for code in documented() if code.startswith("FP")} == raised - {"FP403", "FP000", "FP005"}
    assert documented() - raised == {"42501", "40001", "40P01"}
