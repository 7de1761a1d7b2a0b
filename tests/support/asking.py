"""Asking a gateway over HTTP: every answer's form is checked, and bytes go out raw where httpx would tidy up."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import urlsplit

import httpx

from fencepost.testing.servers.processes import PATIENCE

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


@dataclass
class Api:
    """A client of one gateway."""

    base_url: str
    http: httpx.AsyncClient
    known_pages: set[str] = field(default_factory=set)

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
