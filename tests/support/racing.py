"""A protected table, connections that race for it with the product's own statements, and one that looks on."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import asyncpg
import pytest
from asyncpg.transaction import Transaction
from tests.support.interleave import Connect, Connection, connection_to, start
from tests.support.postgres import Unmade
from tests.support.violations import promised

from fencepost.server.fence.token import BeyondCeiling, MissingRow, Rule, Spent, Stale, Token, Unissued
from fencepost.server.gateway.attempt import judge
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.postgres import keyed as statements
from fencepost.server.postgres import marks
from fencepost.server.postgres.answers import Shown, shown
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.connection import FencedRow, Limits, RowWrite, WriteStatement, session_settings
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.many import ManyOutcome, write_matching
from fencepost.server.postgres.marks import Appeared, KeyState, claim_absent
from fencepost.server.postgres.query import Condition, Field
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.tables import EVERYTHING, Fence, ProtectedTable, quote

T = TypeVar("T")
Key = str | tuple[str, ...]

ORDERS = """
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new', n integer NOT NULL DEFAULT 0
)"""
NEW = (Condition(Field("status"), "eq", "new"),)
"""The filter of the multi-row tests: status=eq.new."""

WITHOUT_FLOORS = """
SET session_replication_role = replica; UPDATE fencepost.floors SET floor = 0; RESET session_replication_role"""
"""What puts all floors to 0, for a test of what else refuses: no statement of the product may."""

ISSUED = 1000
"""How far the built-in source is in a race: above every token that the tests use."""

BOTH_RULES = pytest.mark.parametrize("race", ["strict", "epoch"], indirect=True)
"""For the tests that are about a token which equals the mark; the others run under strict."""


async def outcome(awaitable: Awaitable[T]) -> T | str:
    """Return what it returns, or the SQLSTATE of what it raises."""
    try:
        return await awaitable
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"


def written(answer: object) -> bool:
    """Whether a statement of one row, or of a list of them, gave rows back."""
    return isinstance(answer, FencedRow) or (isinstance(answer, list) and bool(answer))


def parts(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


@dataclass
class Racers:
    """The racers are a, b and c; they have the gateway's session settings. The observer is an ordinary session."""

    a: Connection
    b: Connection
    c: Connection
    observer: Connection

    async def begin(self, connection: Connection) -> Transaction:
        transaction = connection.transaction()
        await transaction.start()
        return transaction

    async def waits(self, connection: Connection, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what must come to wait for a lock."""
        return await self.waits_at(connection.get_server_pid(), work)

    async def waits_at(self, pid: int, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what must come to wait for a lock in the backend `pid`."""
        task = await start(self.observer, work, pid)
        assert not task.done(), f"it did not wait: {task}"
        return task


@dataclass
class Race(Racers):
    """A race for the rows of a protected table."""

    dsn: str
    table: ProtectedTable

    @property
    def fence(self) -> Fence:
        return self.table.fence

    @property
    def rule(self) -> Rule:
        return self.fence.rule

    @property
    def strict(self) -> bool:
        return self.rule == "strict"

    @property
    def target(self) -> Shown:
        return shown(self.table, None, 1_000_000)

    # Stepping

    # The product's statements

    def change(self, values: dict[str, object] | None = None) -> Change:
        return Change(tuple(values or ()), self.target, frozenset(), deletes=values is None)

    async def update(self, connection: Connection, key: Key, token: int, **values: object) -> FencedRow | None:
        statement = statements.update(self.table, self.change(values), "block")
        return await self._run(connection, statement, key, token, json.dumps(values))

    async def claim(self, connection: Connection, key: Key, token: int) -> FencedRow | None:
        change = Change((), self.target, frozenset(), named=True)
        return await self._run(connection, statements.update(self.table, change, "block"), key, token)

    async def claim_absent(self, connection: Connection, key: Key, token: int) -> int | Appeared | None:
        resource = (await self.standing(key)).resource
        return await claim_absent(connection, self.table, parts(key), Token(token), resource)

    async def insert(self, connection: Connection, key: Key, token: int, **values: object) -> list[FencedRow]:
        row = dict(zip(self.table.key, parts(key), strict=True)) | values
        return await self.insert_rows(connection, [row], token)

    async def insert_rows(self, connection: Connection, rows: list[dict[str, object]], token: int) -> list[FencedRow]:
        inserting = statements.insert(self.table, self.change(rows[0]), "block")
        return await inserting.rows(connection, RowWrite((), Token(token), json.dumps(rows).encode()))

    async def insert_one(self, connection: Connection, key: Key, token: int, **values: object) -> FencedRow | None:
        """The INSERT of a PUT."""
        statement = statements.create(self.table, self.change(values), "block")
        return await self._run(connection, statement, key, token, json.dumps(values))

    async def delete(self, connection: Connection, key: Key, token: int) -> FencedRow | None:
        return await self._run(connection, statements.delete(self.table, self.change(), "block"), key, token)

    async def _run(
        self, connection: Connection, statement: WriteStatement, key: Key, token: int, body: str = "{}"
    ) -> FencedRow | None:
        (row,) = await statement.run(connection, [RowWrite(parts(key), Token(token), body.encode())])
        return row

    async def update_many(
        self, connection: Connection, token: int, *, limit: int = 100, **values: object
    ) -> ManyOutcome:
        change = self.change(values)
        write = RowWrite((), Token(token), json.dumps(values).encode())
        return await write_matching(connection, self.table, NEW, write, change, limit)

    async def delete_many(self, connection: Connection, token: int, *, limit: int = 100) -> ManyOutcome:
        write = RowWrite((), Token(token))
        return await write_matching(connection, self.table, NEW, write, self.change(), limit)

    # Looking

    async def standing(self, key: Key) -> KeyState:
        (standing,) = await marks.ask(self.observer, self.table, [parts(key)])
        return standing

    async def verdict(self, key: Key, token: int, connection: "Connection | None" = None) -> str:
        """R5's question and the gateway's reading of the answer: stale, spent, missing, or again."""
        (standing,) = await marks.ask(connection or self.observer, self.table, [parts(key)])
        match judge(standing, self.fence, Token(token)):
            case Stale():
                return "stale"
            case Spent():
                return "spent"
            case Unissued() | BeyondCeiling():
                return "unissued"
            case MissingRow():
                return "missing"
            case None:
                return "again"

    def shown(self, mark: int) -> str | None:
        """How a 409 shows a mark: under epoch a write with it would be accepted."""
        return str(mark) if self.strict else None

    def equal(self, when_strict: str) -> str:
        """What becomes of a token that equals the mark: `when_strict`, or "again" under epoch."""
        return when_strict if self.strict else "again"

    async def row(self, key: Key) -> dict[str, Any] | None:
        where = " AND ".join(f"{quote(c)}::text = ${n}" for n, c in enumerate(self.table.key, 1))
        found = await self.observer.fetchrow(f"SELECT * FROM {self.table.sql_name} WHERE {where}", *parts(key))
        return dict(found) if found else None

    async def live_mark(self, key: Key) -> int | None:
        row = await self.row(key)
        return None if row is None else row["last_fence_token"]

    async def recorded(self, key: Key) -> tuple[int, bool] | None:
        """What fencepost.marks has of the key: (mark, row_absent)."""
        resource = (await self.standing(key)).resource
        found = await self.observer.fetchrow(
            "SELECT last_fence_token, row_absent FROM fencepost.marks WHERE resource = $1", resource
        )
        return (found[0], found[1]) if found else None

    async def direct(self, connection: Connection, sql: str, token: int | str | None = None) -> str:
        """Run SQL as psql would, in a transaction of its own, with SET LOCAL's token; "ok" or the SQLSTATE."""
        try:
            async with connection.transaction():
                if token is not None:
                    await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
                await connection.execute(sql)
        except asyncpg.PostgresError as error:
            return error.sqlstate or "?"
        return "ok"


async def owner(connect: Connect, made: str = "") -> Connection:
    """Connect as the owner, who creates in public, and makes this."""
    connection = await connect()
    # "$user" comes first by default, and the embedded server's superuser is called fencepost, as our schema is.
    await connection.execute(f"SET search_path = public; {made}")
    return connection


async def meanwhile(connection: Connection, table: str, sql: str) -> None:
    """Do this while nothing protects the table, and protect it again."""
    await unprotect(connection, table)
    await connection.execute(sql)
    await protect(connection, table)


async def racer(connect: Connect) -> Connection:
    """Connect as the gateway's pool does."""
    connection = await connect()
    settings = session_settings(Limits(pool_size=1, lock_timeout=15))
    sql = "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS s (name, value)"
    await connection.fetch(sql, list(settings), list(settings.values()))
    return connection


@dataclass(frozen=True)
class Kind:
    """A protected table that races are about. Databases are copied by it: see support/postgres.py."""

    rule: Rule
    ddl: str
    name: str
    source: str
    then: Callable[[Race], Awaitable[None]] | None

    async def made(self, dsn: str) -> ProtectedTable:
        """Make it in the database `dsn`."""
        async with connection_to(dsn) as connection:
            return await self.made_by(connection, dsn)

    async def made_by(self, connection: Connection, dsn: str) -> ProtectedTable:
        """Make it over this connection: the table, its protection, and what `then` does."""
        await connection.execute("SET search_path = public")
        await connection.execute(self.ddl)
        source, queue = (None, self.source) if is_queue(self.source) else (self.source, None)
        await protect(connection, self.name, rule=self.rule, source=source, queue=queue)
        if self.source == "builtin":
            await connection.execute("SELECT setval('fencepost.tokens', $1)", ISSUED)
        table = await protected_table(connection, self.name)
        race = Race(connection, connection, connection, connection, dsn, table)
        if self.then is not None:
            await self.then(race)
        return race.table


async def open_race(
    connect: Connect,
    database: Unmade | str,
    rule: Rule = "strict",
    *,
    ddl: str = ORDERS,
    name: str = "orders",
    source: str = "external",
    then: Callable[[Race], Awaitable[None]] | None = None,
) -> Race:
    """Make a table, protect it, and bring everybody to the line. The built-in source has issued ISSUED tokens.

    `then` is done to the table before anybody else connects, over the observer's connection or one that is closed.
    """
    kind = Kind(rule, ddl, name, source, then)
    if isinstance(database, Unmade):
        table = replace(await database.made_with(kind, kind.made), plans={})  # what a test makes of it is its own
        observer, dsn = await owner(connect), database.url
    else:
        observer, dsn = await owner(connect), database
        table = await kind.made_by(observer, dsn)
    return Race(await racer(connect), await racer(connect), await racer(connect), observer, dsn, table)


async def protected_table(connection: Connection, name: str) -> ProtectedTable:
    """Look at a table as it is now."""
    table = (await load(connection, EVERYTHING, 1)).tables[name]
    assert isinstance(table, ProtectedTable)
    return table


# Breaking the glass in a race: who may, and what is recorded of it.

REASON = "INC-123: the worker is gone"
OPERATOR = "glass_operator"
STRANGER = "glass_stranger"
ROLE = "fencepost_breakglass"

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"


@asynccontextmanager
async def operators(observer: Connection, *, role: bool = True) -> AsyncIterator[None]:
    """Make two plain logins that may write to the tables of public; OPERATOR is in the role of break-glass."""
    await observer.execute(f"CREATE ROLE {OPERATOR} LOGIN; CREATE ROLE {STRANGER} LOGIN")
    for login in (OPERATOR, STRANGER):
        await observer.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {login}")
    if role:
        await observer.execute(
            f"CREATE ROLE {ROLE}; GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO {ROLE};"
            f" GRANT {ROLE} TO {OPERATOR}"
        )
    try:
        yield
    finally:
        await observer.execute("RESET SESSION AUTHORIZATION")
        for name in (OPERATOR, STRANGER, *([ROLE] if role else [])):
            await observer.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def run(
    connection: Connection,
    statements: str | Sequence[str],
    *,
    glass: str | None = REASON,
    token: object = None,
    login: str | None = None,
) -> str:
    """Run SQL in a transaction of its own, as a login; "ok" or the SQLSTATE."""
    try:
        if login is not None:
            await connection.execute(f"SET SESSION AUTHORIZATION {login}")
        async with connection.transaction():
            if glass is not None:
                await connection.execute("SELECT set_config('fencepost.break_glass', $1, true)", glass)
            if token is not None:
                await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
            for statement in (statements,) if isinstance(statements, str) else statements:
                await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"
    finally:
        if login is not None:
            await connection.execute("RESET SESSION AUTHORIZATION")
    return "ok"


async def records(observer: Connection) -> list[tuple[str, str, str]]:
    """What is recorded: (table, verb, first resource), oldest first."""
    rows = await observer.fetch("SELECT name, verb, resource FROM fencepost.break_glass_log ORDER BY xid, verb")
    return [(row[0], row[1], row[2]) for row in rows]


async def count(race: Race) -> int:
    """How many uses are recorded."""
    number: int = await race.observer.fetchval("SELECT count(*) FROM fencepost.break_glass_log")
    return number


# Tables of a scope in a race.

ITEMS = """
CREATE TABLE public.items (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0)"""
NOTES = """
CREATE TABLE public.notes (account_id bigint, no int, PRIMARY KEY (account_id, no));
INSERT INTO public.items VALUES (1, 42), (2, 42), (3, 7)"""
CASCADES = """
CREATE TABLE public.lines (id int PRIMARY KEY, account_id int NOT NULL,
  item int REFERENCES public.items ON DELETE CASCADE);
CREATE TABLE public.tags (id int PRIMARY KEY, item int REFERENCES public.items ON DELETE CASCADE);
CREATE TABLE public.accounts (id int PRIMARY KEY);
CREATE TABLE public.owned (id int PRIMARY KEY, account_id int NOT NULL DEFAULT 7
  REFERENCES public.accounts ON UPDATE CASCADE ON DELETE SET DEFAULT);
INSERT INTO public.lines VALUES (1, 42, 1), (2, 7, 2);
INSERT INTO public.tags VALUES (3, 3);
INSERT INTO public.accounts VALUES (7), (42);
INSERT INTO public.owned VALUES (1, 42)"""
PARTS = """
CREATE TABLE public.parts (region text, id int, account_id int NOT NULL, PRIMARY KEY (region, id))
  PARTITION BY LIST (region);
CREATE TABLE public.parts_eu PARTITION OF public.parts FOR VALUES IN ('eu')"""


async def scoped_race(connect: Connect, database: Unmade | str, rule: Rule, source: str = "external") -> Race:
    """Make `items` and `notes`, whose rows have the mark of their account."""
    return await open_race(connect, database, rule, ddl=ITEMS, name="items", source=source, then=_share_a_scope)


async def _share_a_scope(race: Race) -> None:
    await unprotect(race.observer, "items")
    await race.observer.execute(NOTES)
    for table in ("items", "notes"):
        await protect(race.observer, table, scope="account/{account_id}", rule=race.rule, source=race.fence.source)


async def entered(_race: Race, connection: object, token: int, *scopes: str) -> object:
    """Enter as the gateway does: {scope: refused_by}, or an SQLSTATE."""
    rows = await outcome(
        connection.fetch("SELECT * FROM fencepost.enter('account', $1, $2)", list(scopes), token)  # type: ignore[attr-defined]
    )
    return rows if isinstance(rows, str) else {row["scope"]: row["refused_by"] for row in rows}


async def mark(race: Race, scope: str = "account/42") -> int | None:
    found: int | None = await race.observer.fetchval(
        "SELECT last_fence_token FROM fencepost.marks WHERE resource = $1", scope
    )
    return found


# Writes that are counted.

AUDIT = """
CREATE TABLE public.applied (id bigint GENERATED ALWAYS AS IDENTITY, verb text, order_id text);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.applied (verb, order_id) VALUES (TG_OP, coalesce(NEW.order_id, OLD.order_id));
  RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.audit();
"""


async def audited_race(connect: Connect, database: Unmade | str, rule: Rule, *, counting: bool = True) -> Race:
    """Give the order k with mark 30, and count every write that lands. Not `counting`: writes go in batches."""
    race = await open_race(connect, database, rule)
    await race.insert(race.a, "k", 30)
    if counting:
        await race.observer.execute(AUDIT)
    return race


async def applied(race: Race) -> int:
    count: int = await race.observer.fetchval("SELECT count(*) FROM public.applied")
    return count


async def assert_applied(race: Race, count: int) -> None:
    """Hold against the audit's count how many writes landed: an effect twice, or one that is lost, is a violation."""
    if await race.observer.fetchval("SELECT to_regclass('public.applied') IS NOT NULL"):
        promised((found := await applied(race)) == count, f"{found} effects in place of {count}")
        return
    changed = any([await _exists(race, f"FROM {table} WHERE n <> 0") for table in await _written(race)])
    if count > 0:
        promised(changed or await has_landed(race), f"no effect in place of {count}")
    else:
        promised(not changed, "an effect in place of none")


async def has_landed(race: Race) -> bool:
    """Whether a write has raised a mark above that of the order k."""
    tables = ["fencepost.marks", *await _written(race)]
    return any([await _exists(race, f"FROM {table} WHERE last_fence_token > 30") for table in tables])


async def _written(race: Race) -> list[str]:
    """Return which of the two tables that tests write are there."""
    tables: list[str] = await race.observer.fetchval(
        "SELECT array_agg(t) FROM unnest('{public.orders,public.items}'::text[]) t WHERE to_regclass(t) IS NOT NULL"
    )
    return tables


async def _exists(race: Race, where: str) -> bool:
    found: bool = await race.observer.fetchval(f"SELECT EXISTS (SELECT {where})")
    return found


# A mutant is the product with one line changed, which is there for safety: a test must fail with it.


async def mutate(race: Race, function: str, old: str, new: str, table: str = "orders") -> None:
    """Make a mutant of a race's product."""
    await change(race.observer, function, old, new, table)


async def change(connection: Connection, where: str, old: str, new: str, table: str = "orders") -> None:
    """Replace a text in a function or a view; a mutant that changes nothing would prove nothing.

    `{stem}` is the start of the names of the functions of `table`. A function of the schema is named without the types
    of its arguments if there is one of the name.
    """
    if where.startswith("{stem}"):
        stem = await connection.fetchval("SELECT functions FROM fencepost.protected WHERE name = $1", table)
        where = f'fencepost."{where.format(stem=stem)}"()'
    if where.endswith(")") or "." not in where:
        kind = "regprocedure" if where.endswith(")") else "regproc"
        where = where if "." in where else f"fencepost.{where}"
        definition = await connection.fetchval(f"SELECT pg_get_functiondef($1::text::{kind})", where)
    else:
        query = await connection.fetchval("SELECT pg_get_viewdef($1::text::regclass)", where)
        definition = f"CREATE OR REPLACE VIEW {where} AS {query}"
    assert old in definition, f"{where} has no {old!r}: {definition}"
    await connection.execute(definition.replace(old, new))


async def assert_seen(
    test: Callable[..., Awaitable[None]], race: object, fails_with: tuple[type[BaseException], ...] = (AssertionError,)
) -> None:
    """Assert that the test sees the mutant."""
    try:
        await test(race)
    except fails_with:
        return
    pytest.fail("the test passes with the mutant: it does not see that line, or the line is not needed")
