"""Tables that take sealed tokens only, a gateway with keys for seals, and every way to write under a seal."""

import asyncio
import base64
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
from tests.support.asking import Api, code
from tests.support.gateways import serving
from tests.support.interleave import connection_to
from tests.support.postgres import ReadyMade
from tests.support.violations import promised

from fencepost.server.ops.protect import protect

REFUSED: Final = (403, "FP041")

SQL: Final = """
SET search_path = public;
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE numbered (id int PRIMARY KEY, label text);
CREATE TABLE priced (price numeric PRIMARY KEY, label text);
CREATE TABLE items (order_id text, line int, what text, PRIMARY KEY (order_id, line));
CREATE TABLE transfers (id int PRIMARY KEY, account int NOT NULL, amount int NOT NULL DEFAULT 0,
  part_of int REFERENCES transfers ON DELETE CASCADE);
CREATE TABLE nodes (id text PRIMARY KEY, parent text REFERENCES nodes ON DELETE CASCADE, label text);
CREATE TABLE parts (id text PRIMARY KEY, parent text, label text) PARTITION BY LIST (id);
CREATE TABLE parts_roots PARTITION OF parts FOR VALUES IN ('root');
CREATE TABLE parts_leaves PARTITION OF parts DEFAULT;
ALTER TABLE parts_leaves ADD FOREIGN KEY (parent) REFERENCES parts_roots ON DELETE CASCADE;
CREATE TABLE moved (id text PRIMARY KEY, label text);
CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := 'elsewhere'; RETURN NEW; END $$;
CREATE TRIGGER move BEFORE INSERT ON moved FOR EACH ROW WHEN (NEW.id = 'away') EXECUTE FUNCTION move();
CREATE TABLE plain (id text PRIMARY KEY, label text);
"""
ROWS: Final = """
SET search_path = public;
INSERT INTO orders VALUES ('a'), ('b'), ('a b');
INSERT INTO numbered VALUES (7, 'seven'), (8, 'eight');
INSERT INTO priced VALUES (1.5, 'x'), (2.5, 'y');
INSERT INTO items VALUES ('a', 1, 'x'), ('b', 1, 'y');
INSERT INTO transfers VALUES (1, 41), (2, 42);
INSERT INTO nodes VALUES ('root', NULL), ('leaf', 'root');
INSERT INTO parts VALUES ('root', NULL), ('leaf', 'root');
INSERT INTO moved VALUES ('here', 'x');
INSERT INTO plain VALUES ('a', 'x'), ('b', 'y');
"""
SEALED: Final = ("orders", "numbered", "priced", "items", "nodes", "parts", "moved")


def key_line(name: str, byte: int = 1) -> str:
    return f"{name}:{base64.b64encode(bytes([byte]) * 32).decode()}\n"


@dataclass
class SealedShop:
    """A running gateway with keys, and its database."""

    url: str
    dsn: str
    keys: Path
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def sql(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async with connection_to(self.dsn) as connection:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        return rows

    async def run(self, statements: str) -> None:
        """Execute statements, in one transaction."""
        async with connection_to(self.dsn) as connection:
            await connection.execute(statements)

    async def reset(self) -> None:
        """Have the rows of ROWS, unwritten, no marks, and nothing held."""
        tables = ", ".join(f"public.{table}" for table in (*SEALED, "transfers", "plain"))
        async with connection_to(self.dsn) as connection:
            await connection.execute("SET session_replication_role = replica")  # no trigger judges this
            await connection.execute(f"TRUNCATE {tables}; DELETE FROM fencepost.marks; {ROWS}")
            await connection.execute("DELETE FROM fencepost.locks; DELETE FROM fencepost.leases")

    async def state(self) -> list[asyncpg.Record]:
        """Everything that a write could change: rows with their marks, and marks of keys and scopes."""
        union = " UNION ALL ".join(
            f"SELECT '{table}' AS name, to_jsonb(t)::text AS what FROM public.{table} AS t"
            for table in (*SEALED, "transfers", "plain")
        )
        marks = "SELECT 'marks', m.resource || '=' || m.last_fence_token FROM fencepost.marks AS m"
        return await self.sql(f"{union} UNION ALL {marks} ORDER BY 1, 2")


async def lease(api: Api, lock: str, /, **wanted: object) -> dict[str, Any]:
    """Acquire a lease with tokens, under a name that no other test has unless it is a resource's."""
    answer = await api.http.post("/v1/leases", json={"lock": lock, "ttl_ms": 60_000, "tokens": 8, **wanted})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def release(api: Api, held: dict[str, Any]) -> None:
    """Give the lock back: others take it in the same file."""
    await api.http.delete(f"/v1/leases/{held['lease_id']}", headers={"X-Lease-Secret": held["secret"]})


@dataclass(frozen=True)
class Way:
    """A way to write. `lock`: what the seal is bound to, which is another resource than the one that is written;
    `covering`: what `writes` of a lease must have for this write.
    """

    name: str
    method: str
    path: str
    body: object
    lock: str
    covering: str
    headers: dict[str, str] = field(default_factory=dict)

    async def go(self, api: Api, token: str, **headers: str) -> httpx.Response:
        return await api.ask(self.method, self.path, self.body, token=token, headers={**self.headers, **headers})


BOTH: Final = [{"order_id": "a", "status": "x"}, {"order_id": "b", "status": "x"}]
TWO: Final = [{"order_id": "a2"}, {"order_id": "n3"}]
MINIMAL: Final = {"Prefer": "return=minimal"}
WAYS: Final = (
    Way("patch", "PATCH", "data/orders/b", {"status": "x"}, "orders/a", "orders/b"),
    Way("patch, spelled otherwise", "PATCH", "data/orders/%62", {"status": "x"}, "orders/a", "orders/*"),
    Way("patch of an integer", "PATCH", "data/numbered/08", {"label": "x"}, "numbered/7", "numbered/8"),
    Way("patch by the text in the lock", "PATCH", "data/numbered/08", {"label": "x"}, "numbered/08", "numbered/8"),
    Way("patch of a numeric", "PATCH", "data/priced/2.50", {"label": "x"}, "priced/2.50", "priced/2.5"),
    Way("put of a row", "PUT", "data/orders/b", {"status": "x"}, "orders/a", "orders/*"),
    Way("put of a new row", "PUT", "data/orders/new", {"status": "x"}, "orders/a", "orders/n*"),
    Way("put that a trigger moves", "PUT", "data/moved/away", {"label": "x"}, "moved/away", "moved/*"),
    Way("post of one", "POST", "data/orders", {"order_id": "n1"}, "orders/a", "orders/n1"),
    Way("post of one, minimal", "POST", "data/orders", {"order_id": "n2"}, "orders/a", "orders/n2", MINIMAL),
    Way("post of several", "POST", "data/orders", TWO, "orders/a2", "orders/*"),
    Way("post that a trigger moves", "POST", "data/moved", {"id": "away"}, "moved/away", "moved/*"),
    Way("patch by filter", "PATCH", "data/orders?order_id=in.(a,b)", {"status": "x"}, "orders/a", "orders/*"),
    Way("filter, minimal", "PATCH", "data/orders?order_id=eq.b", {"status": "x"}, "orders/a", "orders/*", MINIMAL),
    Way("patch of an array", "PATCH", "data/orders", BOTH, "orders/a", "orders/*"),
    Way("claim", "POST", "claims", {"resource": "orders/b"}, "orders/a", "orders/b"),
    Way("claim, spelled otherwise", "POST", "claims", {"resource": "numbered/008"}, "numbered/008", "numbered/8"),
    Way("claim without a row", "POST", "claims", {"resource": "orders/none"}, "orders/a", "orders/none"),
    Way("patch in a scope", "PATCH", "data/transfers/2", {"amount": 1}, "account/41", "account/42"),
    Way("patch in a scope, by its row", "PATCH", "data/transfers/2", {"amount": 1}, "transfers/2", "account/*"),
    Way("put in a scope", "PUT", "data/transfers/3", {"account": 42}, "account/41", "account/42"),
    Way("post in a scope", "POST", "data/transfers", {"id": 4, "account": 42}, "account/41", "account/42"),
    Way("patch by filter in scopes", "PATCH", "data/transfers?id=gt.0", {"amount": 2}, "account/41", "account/*"),
    Way("patch of an array in scopes", "PATCH", "data/transfers", [{"id": 2, "amount": 3}], "account/41", "account/*"),
    Way("claim of a scope", "POST", "claims", {"resource": "account/42"}, "account/41", "account/42"),
    Way("delete in a scope", "DELETE", "data/transfers/2", None, "account/41", "account/42"),
    Way("delete by filter in scopes", "DELETE", "data/transfers?id=eq.2", None, "account/41", "account/*"),
    Way("delete of a composite key", "DELETE", "data/items/b,01", None, "items/a,1", "items/b,1"),
    Way("delete that takes other rows", "DELETE", "data/nodes/root", None, "nodes/root", "nodes/*"),
    Way("delete that takes rows of a partition", "DELETE", "data/parts/root", None, "parts/root", "parts/*"),
    Way("delete by filter", "DELETE", "data/numbered?id=eq.8", None, "numbered/7", "numbered/*"),
    Way("delete", "DELETE", "data/orders/b", None, "orders/a", "orders/b"),
    Way("patch of a table without seals", "PATCH", "data/plain/b", {"label": "x"}, "plain/a", "plain/b"),
    Way("post to a table without seals", "POST", "data/plain", {"id": "c"}, "plain/a", "plain/*"),
    Way("delete by filter from a table without seals", "DELETE", "data/plain?id=eq.b", None, "plain/a", "plain/*"),
)  # fmt: skip
"""Each on the rows of ROWS."""


async def refused_elsewhere(shop: SealedShop, api: Api, way: Way) -> None:
    """Write under a seal that is bound to another resource, with and without an Idempotency-Key."""
    held = await lease(api, way.lock)
    try:
        before = await shop.state()
        for number, headers in enumerate(({}, {"Idempotency-Key": f"k-{next(shop.names)}"})):
            answer = await way.go(api, held["sealed_tokens"][number], **headers)
            promised(not answer.is_success, f"{way.name}: it was written: {answer.text}")
            assert answer.status_code == REFUSED[0], (way.name, answer.text)
            assert code(answer) == REFUSED
            assert answer.json()["reason"] == "other-resource"
            assert answer.json()["presented_token"] == held["tokens"][number]
        promised(await shop.state() == before, f"{way.name}: something was written")
    finally:
        await release(api, held)


@contextmanager
def sealed_shop(databases: ReadyMade, keys: Path, **settings: object) -> Iterator[SealedShop]:
    """Make the database, protect its tables, serve it with the keys of this file."""
    dsn, _ = asyncio.run(databases.make_with("sealed shop", _prepare))
    with serving(dsn, seal_keys_file=str(keys), **settings) as url:
        yield SealedShop(url, dsn, keys)
    databases.drop(dsn)


async def _prepare(dsn: str) -> None:
    async with connection_to(dsn) as connection:
        await connection.execute(SQL)
        for table in SEALED:
            await protect(connection, table, source="builtin", sealed=True)
        await protect(connection, "transfers", source="builtin", scope="account/{account}", sealed=True)
        await protect(connection, "plain", source="builtin")
