"""The tables of docs/reading.md, row by row: each header and parameter on each route is done, harmless, or refused by
name, and then nothing has happened.
"""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
import httpx
import pytest
from tests.support.asking import Api
from tests.support.interleave import Connection
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop

from fencepost.server.http import headers as header_rules
from fencepost.server.http import headers as preferences

DOCS: Final = (Path(__file__).parents[2] / "docs/reading.md").read_text()
ROUTES: Final = (
    "GET table", "GET row", "POST", "PATCH, DELETE table", "PATCH, PUT, DELETE row", "claims", "leases", "other GETs",
)  # fmt: skip


def table(first: str) -> dict[str, dict[str, str]]:
    """Read the table whose first column is called so: what is sent, and what each route does about it."""
    heading = f"| {first} | {' | '.join(ROUTES)} |"
    assert DOCS.count(heading) == 1
    lines = DOCS.partition(heading)[2].split("\n\n")[0].splitlines()[2:]
    found = {}
    for line in lines:
        output, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[output.strip("`")] = dict(zip(ROUTES, cells, strict=True))
    return found


HEADERS: Final = table("header")


class OnOneConnection(Shop):
    """A shop that is asked thousands of times."""

    connection: Connection

    async def sql(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        return await self.connection.fetch(statement, *arguments)


@pytest.fixture(scope="module")
def served(databases: ReadyMade) -> Iterator[Shop]:
    """Give a shop whose queued writes stay in the queue: applied meanwhile, they would change what is compared."""
    with running_shop(databases, consume_here=False) as shop:
        yield shop


@pytest.fixture
async def shop(served: Shop) -> AsyncIterator[Shop]:
    shop = OnOneConnection(served.url, served.dsn, served.numbers)
    shop.connection = await asyncpg.connect(served.dsn)
    yield shop
    await shop.connection.close()


@dataclass
class Request:
    """One request of a route. `token`: what it is sent with, unless the case has one."""

    method: str
    path: str
    body: object = None
    token: bool = True
    secret: str = ""


Ready = dict[str, list[Request]]
"""Requests of routes whose rows and locks are as they were."""


async def requests(api: Api, shop: Shop, route: str) -> list[Request]:
    """Requests of a route, each to a row or lock of its own."""
    rows = [await shop.order(mark=10, note="as it was") for _ in range(3)]
    note = {"note": "new"}
    if route == "leases":
        return await lease_requests(api, shop)
    lease = (await a_lease(api, shop))[0] if route == "other GETs" else ""
    of_route = {
        "GET table": [Request("GET", f"data/orders?order_id=eq.{rows[0]}", token=False)],
        "GET row": [Request("GET", f"data/orders/{rows[0]}", token=False)],
        "POST": [Request("POST", "data/orders", {"order_id": shop.key(), **note})],
        "PATCH, DELETE table": [
            Request("PATCH", f"data/orders?order_id=eq.{rows[0]}", note),
            Request("PATCH", "data/orders", [{"order_id": rows[1], **note}]),
            Request("DELETE", f"data/orders?order_id=eq.{rows[2]}"),
        ],
        "PATCH, PUT, DELETE row": [
            Request("PATCH", f"data/orders/{rows[0]}", note),
            Request("PUT", f"data/orders/{rows[1]}", note),
            Request("PUT", f"data/orders/{shop.key()}", note),
            Request("DELETE", f"data/orders/{rows[2]}"),
        ],
        "claims": [Request("POST", "claims", {"resource": f"orders/{rows[0]}"})],
        "other GETs": [
            Request("GET", f"fences?resource=orders/{rows[0]}", token=False),
            Request("GET", "locks?limit=1", token=False),
            Request("GET", "elections?name=e", token=False),
            Request("GET", f"leases/{lease}", token=False),
        ],
    }
    return of_route[route]


async def lease_requests(api: Api, shop: Shop) -> list[Request]:
    async def of_lease(method: str, action: str, body: object) -> Request:
        lease, secret = await a_lease(api, shop)
        return Request(method, f"leases/{lease}{action}", body, token=False, secret=secret)

    return [
        Request("POST", "leases", {"lock": shop.key(), "ttl_ms": TTL_MS}, token=False),
        await of_lease("POST", "/renew", {"ttl_ms": 2 * TTL_MS}),
        await of_lease("POST", "/tokens", {"count": 2}),
        await of_lease("DELETE", "", None),
    ]


async def a_lease(api: Api, shop: Shop) -> tuple[str, str]:
    granted = await api.ask("POST", "leases", {"lock": shop.key(), "ttl_ms": TTL_MS})
    assert granted.status_code == 201
    return granted.json()["lease_id"], granted.json()["secret"]


TTL_MS: Final = 600_000
"""Longer than these tests take: a lease that has expired is ended in the background."""

EVERYTHING: Final = """
SELECT (SELECT sum(hashtextextended(o::text, 0)) FROM public.orders AS o) AS orders,
       (SELECT sum(hashtextextended(m::text, 0)) FROM fencepost.marks AS m) AS marks,
       (SELECT sum(hashtextextended(l::text, 0)) FROM fencepost.locks AS l
         WHERE EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = l.lease_id AND x.ended_at IS NULL)) AS locks,
       (SELECT sum(hashtextextended(l::text, 0)) FROM fencepost.leases AS l) AS leases,
       (SELECT count(*) FROM fencepost.idempotency) AS keys"""
"""All that a request of these tests could change. Rows of locks that are free are removed in the background."""


async def send(api: Api, request: Request, headers: dict[str, str], parameter: str = "") -> httpx.Response:
    sent = dict(headers)
    if request.token:
        sent.setdefault("X-Fence-Token", "77")
    if request.secret:
        sent["X-Lease-Secret"] = request.secret
    if "Idempotency-Key" in sent:  # each write is one of its own
        sent["Idempotency-Key"] += str(abs(hash((request.method, request.path, str(request.body)))))
    path = request.path
    if parameter:
        path += ("&" if "?" in path else "?") + parameter
    return await api.ask(request.method, path, request.body, headers=sent)


async def check(
    api: Api, shop: Shop, name: str, cells: dict[str, str], headers: dict[str, str], output: str, ready: Ready
) -> None:
    for route, cell in cells.items():
        asked = ready.pop(route, None) or await requests(api, shop, route)
        if cell.isdigit() or "GET" in route:
            ready[route] = asked  # nothing happens to their rows
        if cell.isdigit():
            before = await shop.sql(EVERYTHING)
        for request in asked:
            if output.startswith("note=") and isinstance(request.body, list):
                continue  # an array names its rows by their keys, and takes no filter (test_data_routes.py)
            answer = await send(api, request, headers, output)
            where = (route, request, answer.text)
            if cell in ("yes", "same"):
                assert not answer.is_error, where
                # A PUT of a new row, and writes whose answer is another, are looked at by tests of their own.
                if cell == "same" and request.method == "GET" and not request.path.startswith(("locks", "leases")):
                    assert answer.content == (await send(api, request, {})).content, where
            else:
                assert answer.status_code == int(cell), where
                assert answer.json()["code"] in {"400": {"FP016"}, "406": {"FP021"}, "415": {"FP022"}}[cell], where
                assert name.lower() in answer.json()["detail"].lower(), where
        if cell.isdigit():
            assert await shop.sql(EVERYTHING) == before, (route, output, headers)


async def test_a_header_is_heeded_or_harmless_or_refused_by_name(api: Api, shop: Shop) -> None:
    ready: Ready = {}
    for output in HEADERS:
        header, _, value = output.partition(": ")
        named = value.partition(";nulls")[2] and "nulls"
        if header == "Prefer":
            named = value.partition("=")[0]
        await check(api, shop, named or header, HEADERS[output], {header: value}, "", ready)


async def test_a_parameter_is_heeded_or_refused_by_name(api: Api, shop: Shop) -> None:
    ready: Ready = {}
    parameters = table("parameter")
    for output in parameters:
        await check(api, shop, "", parameters[output], {}, output, ready)


def test_the_table_has_all_that_the_code_knows() -> None:
    """What is honoured, harmless and refused in the code has its row; so a new one cannot be left out."""
    output = {each.lower() for each in HEADERS}
    names = {each.partition(": ")[0].lower() for each in HEADERS}
    for name in header_rules.REFUSED:
        spelled = (
            name.decode().replace("x-http-method", "x-http-method-override").replace("-override-override", "-override")
        )
        assert spelled.replace("x-method-override", "x-http-method-override") in names
    honoured = [
        f"{each.name}={each.values[0]}" if len(each.values) == 1 and each.values[0] else each.name
        for each in preferences.PREFERENCES
    ]
    for preference in (*honoured, *preferences.HARMLESS):
        if "=" in preference:
            assert f"prefer: {preference.lower()}" in output, f"docs/reading.md has no row `Prefer: {preference}`"
        else:
            there = any(each == f"prefer: {preference}" or each.startswith(f"prefer: {preference}=") for each in output)
            assert there, f"docs/reading.md has no row `Prefer: {preference}=…`"
    answered = " ".join(output)
    assert all(re.search(rf"\b{name}\b", answered) for name in preferences.HARMLESS_NAMES)
    assert all(f"return={value}" in answered for value in ("minimal", "representation", "headers-only"))
