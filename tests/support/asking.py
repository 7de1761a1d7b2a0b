"""Asking a gateway over HTTP, as callers with tokens, and what is answered."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import httpx
from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from pydantic import TypeAdapter
from tests.support.gateways import gateway_of, in_process
from tests.support.interleave import Connection
from tests.support.use_cases import open_gateway

from fencepost.cli.migrate import GRANTS
from fencepost.server.fence.caller import ASKING, Caller
from fencepost.server.gateway.gateway import DEFAULT_QUEUE, Gateway
from fencepost.server.http.app import SYSTEM
from fencepost.server.http.routes import Route
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.queues.log import Log, Message, Position
from fencepost.server.queues.postgres import PostgresLog
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# What is done as the request of a caller, for tests of callers' shares.

T = TypeVar("T")


def asked_by(name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Do it as the request of a caller."""
    context = copy_context()
    context.run(ASKING.set, name)
    return asyncio.create_task(work, context=context)


# Tokens for tests: good ones, and such as an attacker would make.

SECRET: Final = "a secret of tests, which has thirty-two bytes and more"
RSA: Final = RSAKey.generate_key(2048, {"kid": "rsa-1"})
EC: Final = ECKey.generate_key("P-256", {"kid": "ec-1"})
ED: Final = OKPKey.generate_key("Ed25519", {"kid": "ed-1"})
OCT: Final = OctKey.import_key(SECRET)


def claims(**changes: Any) -> dict[str, Any]:
    """Give claims of a token that is accepted for a day; None takes one out.

    A day, because a test may run an hour after its module was imported.
    """
    now = int(time.time())  # noqa: TID251 - exp is a time of the world's clock
    found = {"iss": "https://id.example", "sub": "worker-a", "role": "web", "iat": now, "exp": now + 86_400} | changes
    return {name: value for name, value in found.items() if value is not None}


def sign(payload: dict[str, Any] | bytes, key: Key = OCT, alg: str = "HS256", **header: Any) -> str:
    """Sign a payload with a key, under a header as it is given."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact({"alg": alg, **header}, raw, key, registry=registry)


def token(**changes: Any) -> str:
    """Give a token under SECRET, with claims that are accepted but for these."""
    return sign(claims(**changes))


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def encode(part: bytes | dict[str, Any]) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(header: bytes | dict[str, Any], payload: bytes | dict[str, Any], signature: bytes = b"") -> str:
    """Put a token together that nobody has signed."""
    return f"{encode(header)}.{encode(payload)}.{encode(signature)}"


def hs256(header: bytes | dict[str, Any], payload: bytes | dict[str, Any]) -> str:
    """Give a token whose signature is good under SECRET, whatever its header says."""
    signed = f"{encode(header)}.{encode(payload)}"
    return f"{signed}.{encode(hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest())}"


def public(*keys: Key, **changes: Any) -> dict[str, Any]:
    return {"keys": [{**key.as_dict(private=False), **changes} for key in keys]}


# Asking a gateway over HTTP: every answer's form is checked, and bytes go out raw where httpx would tidy up.

PROBLEM_MEMBERS = frozenset(
    {"type", "title", "status", "detail"}  # RFC 9457
    | {"code", "message", "details", "hint"}  # PostgREST
    | {"resource", "presented_token", "current_token", "retryable"}
)
_STRINGS = ("type", "title", "detail", "code", "message")
_STRINGS_OR_NULL = ("details", "hint", "resource", "presented_token", "current_token")
_DIFFERS_EACH_TIME = frozenset({"date", "x-request-id", "server"})


@dataclass
class Raw:
    """An answer, as its bytes are."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


def _route_of(request: httpx.Request) -> Route | None:
    method, path = "GET" if request.method == "HEAD" else request.method, request.url.path
    templates = ((route, re.sub(r"\{\w+\}", "[^/]+", route.path)) for route in SYSTEM if route.method == method)
    return next((route for route, template in templates if re.fullmatch(template, path)), None)


@dataclass
class Api:
    base_url: str
    http: httpx.AsyncClient
    known_pages: set[str] = field(default_factory=set)
    declared: set[tuple[str, str, int]] = field(default_factory=set)
    """System routes, and the statuses of those of their answers that were found to be as they are declared."""

    @classmethod
    @asynccontextmanager
    async def open(cls, base_url: str) -> AsyncIterator["Api"]:
        async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE, trust_env=False) as client:
            yield cls(base_url, client)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: object = None,
        prefer: str | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Send a request under /v1 and check the form of its answer. A GET is followed by its HEAD."""
        sent = {**(headers or {})}
        if token is not None:
            sent["X-Fence-Token"] = str(token)
        if prefer is not None:
            sent["Prefer"] = prefer
        if content is None and body is not None:
            content = json.dumps(body).encode()
        if content:
            sent.setdefault("Content-Type", "application/json")
        answer = await self.http.request(method, f"/v1/{path}", content=content, headers=sent)
        await self.check(answer)
        if method == "GET":
            head = await self.http.head(f"/v1/{path}", headers=sent)
            assert head.status_code == answer.status_code
            assert head.content == b""
            assert _lasting(head.headers) == _lasting(answer.headers)
        return answer

    async def check(self, answer: httpx.Response) -> None:
        """Check what holds for every answer of /v1."""
        assert answer.headers.get_list("cache-control") == ["no-store"]
        assert len(answer.headers.get_list("x-request-id")) == 1
        if answer.status_code >= 400:
            await self.check_problem(answer.status_code, answer.headers, answer.content)
        elif (route := _route_of(answer.request)) is not None:
            declared = route.answers[answer.status_code]
            if answer.headers.get("content-type") == "application/json":
                TypeAdapter(declared.model).validate_python(answer.json(), strict=True)
            self.declared.add((route.method, route.path, answer.status_code))

    async def check_problem(self, status: int, headers: Mapping[str, str], content: bytes) -> dict[str, Any]:
        """Check an error's body by both conventions, and that the page of its type is there."""
        assert headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = json.loads(content)
        assert problem.keys() >= PROBLEM_MEMBERS
        assert problem["status"] == status
        assert all(isinstance(problem[name], str) and problem[name] for name in _STRINGS)
        assert all(problem[name] is None or isinstance(problem[name], str) for name in _STRINGS_OR_NULL)
        assert problem["message"] == problem["detail"]
        assert isinstance(problem["retryable"], bool)
        retryable = status in (408, 423, 503) or problem["code"] == "FP013"
        assert (headers.get("retry-after") is not None) is retryable
        assert problem["retryable"] is retryable
        assert b"Traceback" not in content
        assert b'File \\"' not in content
        if problem["type"] not in self.known_pages:
            page = await self.http.get(problem["type"])
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert escape(problem["title"]) in page.text
            self.known_pages.add(problem["type"])
        return problem

    async def raw(
        self,
        method: str,
        path: bytes,
        body: bytes = b"",
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        announce: bool = True,
    ) -> Raw:
        """Send exactly these bytes as path and headers; an error's form is checked."""
        lines = [f"{method} ".encode() + path + b" HTTP/1.1", b"Host: localhost", b"Connection: close"]
        lines += [name + b": " + value for name, value in headers]
        if body and announce:
            lines += [b"Content-Type: application/json", f"Content-Length: {len(body)}".encode()]
        raw = await self.exchange(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if raw.status >= 400 and raw.header("content-type") == "application/problem+json" and raw.body:
            await self.check_problem(raw.status, dict(raw.headers), raw.body)
        return raw

    async def exchange(self, sent: bytes) -> Raw:
        """Send bytes, read until the gateway hangs up."""
        parts = urlsplit(self.base_url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(sent)
            received = await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()
        head, _, body = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Raw(int(status.split()[1]), headers, body)


def _lasting(headers: httpx.Headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _DIFFERS_EACH_TIME}


def code(answer: httpx.Response) -> tuple[int, str]:
    """Return what a client decides by: the status, and the code of the body."""
    return answer.status_code, answer.json()["code"]


# A gateway in the test's own event loop, whose queues nobody consumes.


@dataclass
class Queued:
    """What asks the gateway, its parts, and the log of its default queue."""

    api: Api
    gateway: Gateway

    @property
    def log(self) -> Log:
        return self.gateway.queues[DEFAULT_QUEUE]

    async def messages(self) -> list[Message]:
        """Read what is in the log, in the order in which it was appended."""
        async with self.gateway.database.connection() as connection:
            rows = await connection.fetch("SELECT partition, position FROM fencepost.queued ORDER BY appended_at")
        found = [await self.log.waiting(Position(row["partition"], row["position"])) for row in rows]
        return [each.message for at_place in found for each in at_place or ()]

    async def empty(self) -> None:
        """Take all out of the log, as a consumer does that has decided it."""
        async with self.gateway.database.for_writing() as connection:
            await connection.execute("DELETE FROM fencepost.queued")


@asynccontextmanager
async def queueing(database: str, times: Times = TIMES, /, **settings: object) -> AsyncIterator[Queued]:
    """Serve a database until the block ends; its queue begins empty."""
    async with in_process(database, times, **{"consume_here": False, **settings}) as client:
        queued = Queued(Api("http://localhost", client), gateway_of(client))
        await queued.empty()
        yield queued


@asynccontextmanager
async def another_log(queued: Queued, database: str) -> AsyncIterator[PostgresLog]:
    """Have the gateway's default queue in another database, which stays when its own goes away."""
    opened = await Database.open(database, Limits(1))
    log = PostgresLog(opened, database)
    cast("dict[str, Log]", queued.gateway.queues)[DEFAULT_QUEUE] = log
    try:
        yield log
    finally:
        await opened.close()


# A gateway whose login may do nothing with users' tables, and roles of callers that may do something each.

LOGIN = "fp_login"
ROLES = ("fp_web", "fp_other", "fp_reader", "fp_nothing")
WEB, OTHER, READER, NOTHING = ROLES
RULED = "fp_ruled"

_WHO = """
SELECT CURRENT_USER = SESSION_USER AND current_setting('role') = 'none'
   AND coalesce(current_setting('request.jwt.claims', true), '') = ''
   AND coalesce(current_setting('fencepost.caller', true), '') = ''"""


def caller(role: str, name: str = "", claims: str = "") -> Caller:
    return Caller(name or f"{role}-1", role=role, claims=claims)


@dataclass
class Acting:
    """`owner` made the tables, and looks on."""

    gateway: Gateway
    owner: Connection
    dsn: str

    def of(self, role: str, name: str = "", claims: str = "") -> Gateway:
        return self.gateway.of(caller(role, name, claims))

    async def assert_own_name(self) -> None:
        """Fail if any connection that can be lent acts as a caller, or is lent still."""
        database = self.gateway.database
        for pool in database._pools:  # noqa: SLF001 - nothing of the product shows them

            async def at_rest(pool: object = pool) -> bool:
                return not pool._lent  # type: ignore[attr-defined]  # noqa: SLF001

            await eventually(at_rest, what="connections that come back")
            for connection, _ in tuple(pool._idle):  # noqa: SLF001 - questions of the gateway itself go on
                assert not connection.acting
                assert await connection.fetchval(_WHO), "it acts as a caller still"


@asynccontextmanager
async def acting(
    owner: Connection, dsn: str, sql: str, *, pool_size: int = 1, batch_pool_size: int = 1
) -> AsyncIterator[Acting]:
    """Make login and roles, run `sql`, and open the gateway. All roles go at the end."""
    try:
        await owner.execute(f"CREATE ROLE {LOGIN} LOGIN NOINHERIT PASSWORD 'x'")
        for role in ROLES:
            await owner.execute(f"CREATE ROLE {role}; GRANT {role} TO {LOGIN}; GRANT USAGE ON SCHEMA public TO {role}")
        for grant in GRANTS:
            await owner.execute(grant.format(role=LOGIN))
        await owner.execute(sql)
        account = dsn.partition("://")[2].partition("@")[0]
        theirs = dsn.replace(account, f"{LOGIN}:x", 1)
        async with open_gateway(theirs, pool_size=pool_size, batch_pool_size=batch_pool_size) as gateway:
            yield Acting(gateway, owner, theirs)
    finally:
        for role in (*ROLES, LOGIN):
            await owner.execute(
                f"DO $$ BEGIN IF to_regrole('{role}') IS NOT NULL THEN DROP OWNED BY {role}; DROP ROLE {role};"
                " END IF; END $$"
            )


@asynccontextmanager
async def ruled(owner: Connection, dsn: str, sql: str) -> AsyncIterator[str]:
    """Make a login that policies rule, with a gateway's grants; run `sql`; give its URL. It goes at the end."""
    await owner.execute(f"CREATE ROLE {RULED} LOGIN PASSWORD 'x'")
    try:
        await owner.execute(sql)
        for grant in GRANTS:
            await owner.execute(grant.format(role=RULED))
        yield dsn.replace(dsn.partition("://")[2].partition("@")[0], f"{RULED}:x", 1)
    finally:
        await owner.execute(f"DROP OWNED BY {RULED}; DROP ROLE {RULED}")
