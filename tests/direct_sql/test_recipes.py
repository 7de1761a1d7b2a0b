"""docs/direct-sql.md runs as it stands; what cannot run here is marked on the page."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tests.support.interleave import Connect
from tests.support.live_gateway import serving
from tests.support.recipes import PAGE, recipe, recipes, run, run_recipe, steps

from fencepost.embedded.server import PostgresServer
from fencepost.settings import Settings
from fencepost.storage import demo
from fencepost.storage.protecting.protect import protect
from fencepost.testing.servers.databases import clone, in_database

RUN_ELSEWHERE = {"django", "django-use", "sqlalchemy", "publisher", "subscriber"}
"""Recipes that the tests of the ORMs and of replication run."""


@pytest.fixture
async def shop(database: str) -> str:
    """Give the URL of a database with the demo's orders."""
    await demo.load(database)
    return database


@pytest.fixture(scope="module")
def shop_of_refusals(postgres: PostgresServer, template: str) -> Iterator[str]:
    """Give the URL of a database with a table of each kind, for statements that change nothing."""
    url = in_database(postgres.url, "refusals")
    asyncio.run(_make_refusals(postgres.url, url, template))
    yield url
    asyncio.run(_execute(postgres.url, "DROP DATABASE refusals WITH (FORCE)"))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _make_refusals(server: str, url: str, template: str) -> None:
    await clone(server, "refusals", template)
    await _execute(
        url,
        "CREATE TABLE plain (id int PRIMARY KEY, n int); CREATE TABLE issued (id int PRIMARY KEY);"
        "CREATE TABLE scoped (id int PRIMARY KEY, account int NOT NULL); GRANT ALL ON plain TO pg_read_all_data",
    )
    connection = await asyncpg.connect(url)
    try:
        await protect(connection, "plain")
        await protect(connection, "scoped", scope="account/{account}")
        await protect(connection, "issued", source="builtin")
    finally:
        await connection.close()
    await _execute(url, TOKEN.format(9) + "INSERT INTO plain VALUES (1), (2); INSERT INTO scoped VALUES (1, 7)")
    await _execute(url, TOKEN.format(10) + "UPDATE plain SET n = 0 WHERE id = 1; DELETE FROM plain WHERE id = 2")


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
    done = await asyncio.to_thread(run, f"psql $DATABASE_URL -v ON_ERROR_STOP=1 <<'SQL'\n{first[1]}SQL", postgres, shop)
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
    with serving(Settings.model_validate({"database_url": shop, "port": 0})) as url:
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
        assert connection.scalar(text("SELECT count(*) FROM fencepost.protected")) == 1


TOKEN = "SET LOCAL fencepost.token = '{}'; "
REFUSED = {
    "stale": ("FP409", TOKEN.format(9) + "UPDATE plain SET n = 1"),
    "spent": ("FP409", TOKEN.format(10) + "UPDATE plain SET n = 1"),
    "a stale insert": ("FP409", TOKEN.format(9) + "INSERT INTO plain VALUES (2)"),
    "no token": ("FP428", "UPDATE plain SET n = 1"),
    "no token, insert": ("FP428", "INSERT INTO plain VALUES (3)"),
    "no token, delete": ("FP428", "DELETE FROM plain"),
    "truncate": ("FP428", TOKEN.format(36) + "TRUNCATE plain"),
    "malformed": ("FP400", TOKEN.format("+36") + "UPDATE plain SET n = 1"),
    "changed key": ("FP400", TOKEN.format(36) + "UPDATE plain SET id = 7"),
    "changed scope": ("FP400", TOKEN.format(36) + "UPDATE scoped SET account = 8"),
    "no scope": ("FP400", TOKEN.format(36) + "INSERT INTO scoped VALUES (2, NULL)"),
    "no reason": ("FP400", "SET LOCAL fencepost.break_glass = '-'; UPDATE plain SET n = 1"),
    "never issued": ("FP018", TOKEN.format(2**40) + "INSERT INTO issued VALUES (1)"),
    "not a member": ("42501", "SET LOCAL fencepost.break_glass = 'why not'; UPDATE plain SET n = 1"),
    "the log": ("42501", "DELETE FROM fencepost.break_glass_log"),
}


async def test_a_refusal_has_the_sqlstate_of_the_page(shop_of_refusals: str) -> None:
    for case, (expected, statement) in REFUSED.items():
        assert expected in documented(), case
        connection = await asyncpg.connect(shop_of_refusals)
        try:
            if case == "not a member":
                await connection.execute("SET SESSION AUTHORIZATION pg_read_all_data")
            with pytest.raises(asyncpg.PostgresError) as caught:
                await connection.execute(statement)
            assert caught.value.sqlstate == expected, case
            assert await connection.fetchval("SELECT 1") == 1, case  # usable as before
        finally:
            await connection.close()


async def test_without_a_transaction_set_local_does_nothing(shop: str) -> None:
    connection = await asyncpg.connect(shop)
    try:
        await connection.execute("SET LOCAL fencepost.token = '36'")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.execute("UPDATE orders SET status = 'paid'")
        assert caught.value.sqlstate == "FP428"
        await connection.execute("SET LOCAL fencepost.token = '36'; UPDATE orders SET status = 'paid'")  # one message
    finally:
        await connection.close()


async def test_a_claim_reads_the_row_that_it_fences(shop: str) -> None:
    """As the page has it: the claim first, and the rest of the operation under the same token."""
    connection = await asyncpg.connect(shop)
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL fencepost.token = '36'")
            claim = "UPDATE orders SET last_fence_token = 36 WHERE order_id = 'order-123' RETURNING status"
            assert await connection.fetchval(claim) == "new"
            await connection.execute("UPDATE orders SET status = 'paid' WHERE order_id = 'order-123'")
    finally:
        await connection.close()


def documented() -> set[str]:
    """The SQLSTATEs of the page's table."""
    rows = re.findall(r"^\| ((?:`\w{5}`(?:, )?)+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"\w{5}", row)}


def test_the_table_of_sqlstates_is_complete() -> None:
    folder = PAGE.parents[1]
    sources = [*folder.glob("migrations/schema/*.sql"), *folder.glob("app/fencepost/storage/protecting/functions.py")]
    raised = set(re.findall(r"ERRCODE = '(FP\w{3})'", "".join(source.read_text("utf-8") for source in sources)))
    assert {code for code in documented() if code.startswith("FP")} == raised - {"FP403", "FP000"}
    assert documented() - raised == {"42501", "40001", "40P01"}
    assert {expected for expected, _ in REFUSED.values()} == documented() - {"40001", "40P01"}
