"""Tables that together reach each branch of postgres/statements, and the requests that make a gateway send each of its
statements about them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import httpx
from tests.statements.recording import FIRST_ISSUED, Recorder
from tests.support.interleave import Connection

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect

SQL = """
SET search_path = public;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN code AS varchar(10) CHECK (VALUE <> '');
CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TABLE orders (order_id text PRIMARY KEY, status text DEFAULT 'new', sku text UNIQUE, at timestamptz);
CREATE TABLE held (LIKE orders INCLUDING ALL);
CREATE TABLE pinned (LIKE orders INCLUDING ALL);
CREATE TABLE typed (
  m mood, d code COLLATE "C", n numeric(6, 2), t timestamptz, j jsonb NOT NULL DEFAULT '{}', tags text[],
  feelings mood[], s smallint, doubled int GENERATED ALWAYS AS (s * 2) STORED,
  number bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (m, d, n, t));
CREATE TABLE lines (account_id bigint, line code, n int, PRIMARY KEY (account_id, line));
CREATE TABLE ledger (id int PRIMARY KEY, book varchar(10) NOT NULL, part text NOT NULL, n int);
CREATE TRIGGER theirs AFTER INSERT OR UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION theirs();
"""


ALL = ("new_rows", "changes", "puts", "many", "claims", "reads", "idempotent", "broken", "deletes")
WORKERS = (*ALL, "next_row")
SOME = ("new_rows", "changes", "puts", "many", "claims", "reads", "deletes")


@dataclass(frozen=True)
class Rows:
    """What requests write to a table: its path, eight keys that are not there, and the columns of a row."""

    path: str
    keys: Sequence[Sequence[Any]]
    names: Sequence[str]
    values: Mapping[str, Any]
    filter: str
    options: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """What a new row has beside `values`: the columns of its scope."""
    parts: Sequence[str] = ALL
    """Which requests are sent: those that reach branches that no other table reaches."""

    def row(self, number: int) -> dict[str, Any]:
        return {**dict(zip(self.names, self.keys[number], strict=True)), **self.whole, **self.values}

    def keyed(self, number: int) -> str:
        return f"{self.path}/" + ",".join(str(part) for part in self.keys[number])


NOT_STRICT = get_args(Rule)[1]

ORDERS = Rows(
    "orders",
    [[f"k{n}"] for n in range(8)],
    ["order_id"],
    {"status": "x", "at": None},
    "status=eq.x&at=is.null",
    parts=WORKERS,
)
TABLES = [
    ORDERS,
    replace(ORDERS, path="held", options={"rule": NOT_STRICT}),
    replace(ORDERS, path="pinned", options={"source": "builtin"}, parts=("new_rows", "changes", "claims")),
    Rows(
        "typed",
        [["ok", "d", n, "2026-01-31T00:00:00Z"] for n in range(8)],
        ["m", "d", "n", "t"],
        {"j": {"k": 1}, "tags": ["t"], "feelings": ["ok"], "s": 1},
        "m=eq.ok&j->k=eq.1",
        parts=SOME,
    ),
    Rows(
        "lines", [[43, f"l{n}"] for n in range(8)], ["account_id", "line"], {"n": 1}, "account_id=eq.43&line=like.l*",
        {"scope": "account/{account_id}"}, "account/43",
    ),
    Rows(
        "ledger", [[n] for n in range(1, 9)], ["id"], {"n": 1}, "n=in.(1,2)",
        {"scope": "books/{book},{part}"}, "books/b,ok", {"book": "b", "part": "ok"}, SOME,
    ),
]  # fmt: skip


async def make(connection: Connection) -> None:
    await connection.execute(SQL)
    await connection.execute(f"SELECT setval('fencepost.tokens', {FIRST_ISSUED})")
    for rows in TABLES:
        await protect(connection, rows.path, **rows.options)


class Driver:
    """Sends requests about one table, with ever newer tokens, and records what the gateway sends."""

    def __init__(self, client: httpx.AsyncClient, recorder: Recorder, rows: Rows) -> None:
        self._client = client
        self._recorder = recorder
        self._rows = rows
        self._token = 0

    async def ask(
        self, label: str, method: str, path: str, body: object = None, *, stale: bool = False, breaks: bool = False,
        once: str = "", prefer: str = "",
    ) -> httpx.Response:  # fmt: skip
        """Send one request and keep what the gateway sent for it; the label gets the answer's status."""
        self._token += 0 if stale else 1
        headers = {} if method == "GET" or path == "leases" else {"X-Fence-Token": "1" if stale else str(self._token)}
        headers |= {"Idempotency-Key": once} if once else {}
        headers |= {"Prefer": prefer} if prefer else {}
        if isinstance(body, dict) and "next" in body:
            headers |= {"X-Lease-Secret": f"the-secret-of-{self._rows.path}-alone"}
        content = None if body is None else json.dumps(body)
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        with self._recorder.request(breaks=breaks) as request:
            answer = await self._client.request(method, f"/v1/{path}", content=content, headers=headers)
        self._recorder.keep(f"{label}: {answer.status_code}", request)
        return answer

    async def all(self) -> None:
        for part in self._rows.parts:
            self._token = 100 * (1 + WORKERS.index(part))  # the same for each table
            await getattr(self, part)()

    async def new_rows(self) -> None:
        rows, path = self._rows, f"data/{self._rows.path}"
        await self.ask("POST one", "POST", path, rows.row(0))
        await self.ask("POST one, present", "POST", path, rows.row(0))
        await self.ask("POST one, stale", "POST", path, rows.row(0), stale=True)
        await self.ask("POST many", "POST", path, [rows.row(1), rows.row(2)])
        await self.ask("POST many, present and stale", "POST", path, [rows.row(1), rows.row(2)], stale=True)
        await self.ask("POST one, only values", "POST", path, {**rows.whole, **rows.values})
        await self.ask("POST many, only values", "POST", path, [{**rows.whole, **rows.values}] * 2)
        await self.ask("POST of nothing", "POST", path, {})
        await self.ask("POST many of nothing", "POST", path, [{}, {}])
        await self.ask("POST one, minimal", "POST", path, rows.row(3), prefer="return=minimal")

    async def changes(self) -> None:
        rows, path = self._rows, f"data/{self._rows.keyed(0)}"
        named = dict(zip(rows.names, rows.keys[0], strict=True))
        first = rows.names[0]
        spelled = {name: f" {v}" if isinstance(v, int) else v for name, v in named.items()}
        await self.ask("PATCH", "PATCH", path, dict(rows.values))
        await self.ask("PATCH, select", "PATCH", f"{path}?select={first}", dict(rows.values))
        await self.ask("PATCH, minimal", "PATCH", path, dict(rows.values), prefer="return=minimal")
        await self.ask("PATCH of nothing", "PATCH", path, {})
        await self.ask("PATCH with its key", "PATCH", path, named | dict(rows.values))
        await self.ask("PATCH with its key, spelled otherwise", "PATCH", path, spelled | dict(rows.values))
        await self.ask("PATCH, stale", "PATCH", path, dict(rows.values), stale=True)
        await self.ask("PATCH, no row", "PATCH", f"data/{rows.keyed(7)}", dict(rows.values))

    async def puts(self) -> None:
        rows = self._rows
        body = {**rows.whole, **rows.values}
        await self.ask("PUT over a row", "PUT", f"data/{rows.keyed(0)}", body)
        await self.ask("PUT of nothing", "PUT", f"data/{rows.keyed(0)}", {**rows.whole})
        await self.ask("PUT, stale", "PUT", f"data/{rows.keyed(0)}", body, stale=True)
        await self.ask("PUT of a new row", "PUT", f"data/{rows.keyed(4)}", body)
        await self.ask("PUT of a new row with defaults", "PUT", f"data/{rows.keyed(5)}", {**rows.whole})

    async def many(self) -> None:
        rows, path = self._rows, f"data/{self._rows.path}"
        named = [{k: v for k, v in rows.row(n).items() if k not in rows.whole} for n in (0, 1, 2)]
        missing = [named[0], {**named[0], **dict(zip(rows.names, rows.keys[7], strict=True))}]
        for what, stale in (("", False), (", stale", True)):
            await self.ask(f"PATCH of an array{what}", "PATCH", path, named, stale=stale)
            await self.ask(f"PATCH by filter{what}", "PATCH", f"{path}?{rows.filter}", dict(rows.values), stale=stale)
        keys = [{name: each[name] for name in rows.names} for each in named]
        await self.ask("PATCH of an array, only keys", "PATCH", path, keys)
        await self.ask("PATCH of an array, no row", "PATCH", path, missing)
        await self.ask("PATCH by filter of nothing", "PATCH", f"{path}?{rows.filter}", {})
        await self.ask("PATCH by filter, minimal", "PATCH", f"{path}?{rows.filter}", dict(rows.values),
                       prefer="return=minimal, max-affected=40")  # fmt: skip

    async def claims(self) -> None:
        rows = self._rows
        for what, resource in (("row", rows.keyed(0)), ("absent row", rows.keyed(6)), ("scope", rows.scope)):
            if resource:
                for stale in (False, True):
                    body = {"resource": resource}
                    await self.ask(f"claim of a {what}{', stale' * stale}", "POST", "claims", body, stale=stale)
        claims = [rows.scope] if rows.scope else [rows.keyed(n) for n in (0, 1, 6)]
        lease = {"lock": rows.path, "ttl_ms": 10_000, "claim": claims, "secret": "s" * 32}
        await self.ask("lease with claims", "POST", "leases", lease)
        await self.ask("lease with claims, again", "POST", "leases", lease)

    async def reads(self) -> None:
        rows = self._rows
        await self.ask("GET of a row", "GET", f"data/{rows.keyed(0)}")
        query = f"{rows.filter}&order={rows.names[0]}&limit=2"
        await self.ask("GET by filter", "GET", f"data/{rows.path}?{query}", prefer="count=exact")
        for number in (0, 6):
            await self.ask("GET of a mark", "GET", f"fences?resource={rows.keyed(number)}")
        if rows.scope:
            await self.ask("GET of a scope's mark", "GET", f"fences?resource={rows.scope}")

    async def idempotent(self) -> None:
        rows, path = self._rows, f"data/{self._rows.path}"
        body = {**rows.whole, **rows.values}
        for again in ("", ", again"):
            for verb, target, sent in (
                ("PATCH", rows.keyed(0), dict(rows.values)), ("PUT", rows.keyed(0), body), ("PUT", rows.keyed(6), body),
                ("DELETE", rows.keyed(6), None), ("POST", rows.path, rows.row(6)),
                ("PATCH", f"{rows.path}?{rows.filter}", dict(rows.values)),
            ):  # fmt: skip
                once = f"{path}-{verb}-{target}"
                await self.ask(f"{verb} with an Idempotency-Key{again}", verb, f"data/{target}", sent, once=once)

    async def broken(self) -> None:
        rows, path = self._rows, f"data/{self._rows.path}"
        body = {**rows.whole, **rows.values}
        array = [{k: v for k, v in rows.row(n).items() if k not in rows.whole} for n in (0, 1)]
        for verb, target, sent in (
            ("PATCH", f"data/{rows.keyed(0)}", dict(rows.values)), ("PUT", f"data/{rows.keyed(0)}", body),
            ("POST", path, rows.row(7)), ("PATCH", path, array), ("DELETE", f"data/{rows.keyed(7)}", None),
            ("PUT", f"data/{rows.keyed(7)}", body), ("PATCH", f"{path}?{rows.filter}", dict(rows.values)),
        ):  # fmt: skip
            what = " of an array" if sent is array else ""
            await self.ask(f"{verb}{what}, and the connection breaks", verb, target, sent, breaks=True)

    async def deletes(self) -> None:
        rows = self._rows
        await self.ask("DELETE, stale", "DELETE", f"data/{rows.keyed(0)}", stale=True)
        await self.ask("DELETE", "DELETE", f"data/{rows.keyed(0)}", prefer="return=representation")
        await self.ask("DELETE, no row", "DELETE", f"data/{rows.keyed(0)}", prefer="return=representation")
        await self.ask("DELETE, minimal", "DELETE", f"data/{rows.keyed(1)}", prefer="return=minimal")
        await self.ask("DELETE by filter, stale", "DELETE", f"data/{rows.path}?{rows.filter}", stale=True)
        await self.ask("DELETE by filter", "DELETE", f"data/{rows.path}?{rows.filter}",
                       prefer="return=representation")  # fmt: skip

    async def next_row(self) -> None:
        rows = self._rows
        await self.ask("POST one, for workers", "POST", f"data/{rows.path}", rows.row(3))
        following = {"next": {"table": rows.path, "where": rows.filter}}
        await self.ask("the next row", "POST", "leases", following)
