"""Requests whose caller has a role of the database, by HTTP. Who the caller is says a header here, by a stand-in for
the authenticator; all else is the product.
"""

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.support.asking import LOGIN, NOTHING, READER, WEB, acting, code
from tests.support.gateways import in_process
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import ORDERS, open_race

from fencepost.server.fence.caller import CALLER, Caller
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES, Times

GRANTED = f"""
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {WEB}; GRANT SELECT ON orders TO {READER};
CREATE ROLE t_plain"""


class FromHeader:
    """Stands in for the authenticator."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: MutableMapping[bytes, bytes] = dict(scope.get("headers", []))
        role = headers.get(b"x-test-role")
        if role is not None:
            name = headers.get(b"x-test-name", role + b"-1").decode()
            claims = headers.get(b"x-test-claims", b"").decode()
            scope = {**scope, CALLER: Caller(name, role=role.decode(), claims=claims)}
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving_roles(dsn: str, times: Times = TIMES, /, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(dsn, times, **settings) as client:
        transport = client._transport  # noqa: SLF001
        assert isinstance(transport, httpx.ASGITransport)
        transport.app = FromHeader(transport.app)
        yield client


@pytest.fixture
async def dsn(connect: Connect, unmade: Unmade) -> AsyncIterator[str]:
    """Give a database with the order k, and the URL by which the gateway logs in."""
    race = await open_race(connect, unmade, ddl=ORDERS)
    await race.insert(race.a, "k", 30)
    try:
        async with acting(race.observer, race.dsn, GRANTED) as stage:
            yield stage.dsn
    finally:
        await race.observer.execute("DROP ROLE IF EXISTS t_plain")


def ask_as(role: str, token: int = 40, **more: str) -> dict[str, str]:
    return {"X-Test-Role": role, "X-Fence-Token": str(token), **more}


REQUESTS: dict[str, tuple[str, str, object]] = {
    "GET row": ("GET", "/v1/data/orders/k", None),
    "GET rows": ("GET", "/v1/data/orders", None),
    "PATCH": ("PATCH", "/v1/data/orders/k", {"n": 1}),
    "PATCH rows": ("PATCH", "/v1/data/orders?n=eq.0", {"n": 1}),
    "PUT": ("PUT", "/v1/data/orders/k", {"n": 1}),
    "POST": ("POST", "/v1/data/orders", {"order_id": "n"}),
    "DELETE": ("DELETE", "/v1/data/orders/k", None),
    "claim": ("POST", "/v1/claims", {"resource": "orders/k"}),
    "fences": ("GET", "/v1/fences?resource=orders/k", None),
    "lease": ("POST", "/v1/leases", {"locks": ["l"], "ttl_ms": 60000, "claim": ["orders/k"]}),
}


LOCK = {"locks": ["l"], "ttl_ms": 60000}


async def send(client: httpx.AsyncClient, name: str, role: str) -> httpx.Response:
    method, path, body = REQUESTS[name]
    headers = ask_as(role)
    if method == "GET" or name == "lease":
        del headers["X-Fence-Token"]
    return await client.request(method, path, json=body, headers=headers)


async def test_a_role_that_is_not_allowed_is_refused_on_every_route(dsn: str) -> None:
    async with serving_roles(dsn, roles=f" {READER} ,{NOTHING},t_plain") as client:
        for name in REQUESTS:
            answer = await send(client, name, "t_plain")
            assert code(answer) == (403, "FP043"), name
            assert f"GRANT t_plain TO {LOGIN}" in answer.json()["detail"]
            answer = await send(client, name, WEB)
            assert code(answer) == (403, "FP043"), name
            assert "FENCEPOST_ROLES" in answer.json()["detail"]
            answer = await send(client, name, NOTHING)
            assert code(answer) == (403, "42501"), (name, answer.text)
            answer = await send(client, name, READER)
            assert answer.is_success is (name in ("GET row", "GET rows", "fences")), (name, answer.text)
        row = await send(client, "GET row", READER)
        assert row.json()["n"] == 0, "nothing was written"
        locked = await client.post("/v1/leases", json=LOCK, headers={"X-Test-Role": "t_plain"})
        assert locked.status_code == 201, "a lock by itself needs no role of the database"


async def test_a_role_writes_and_without_a_caller_the_login_acts_as_before(dsn: str) -> None:
    async with serving_roles(dsn) as client:
        answer = await client.patch("/v1/data/orders/k", json={"n": 7}, headers=ask_as(WEB))
        assert (answer.status_code, answer.json()["n"]) == (200, 7)
        queued = await client.patch("/v1/data/orders/k", json={"n": 1}, headers=ask_as(WEB, Prefer="respond-async"))
        assert code(queued) == (403, "FP044")
        assert "--seal-keys-file" in queued.json()["hint"]
        answer = await client.get("/v1/data/orders/k")
        assert code(answer) == (403, "42501"), "it may do nothing by itself"
        assert (await client.post("/v1/leases", json=LOCK)).status_code == 201


@pytest.mark.parametrize(
    ("settings", "starts"),
    [({}, False), ({"roles": WEB}, True), ({"jwt_role_claim_key": ""}, True)],
    ids=str,
)
async def test_a_superusers_login_needs_a_list_of_roles(
    database: str, settings: dict[str, object], *, starts: bool
) -> None:
    """A JWT could name any role there."""
    opened = serving_roles(database, jwt_secret="x" * 32, **settings)
    if starts:
        async with opened:
            return
    with pytest.raises(StartupError, match="FENCEPOST_ROLES"):
        await opened.__aenter__()
