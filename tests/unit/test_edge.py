"""The outermost layer: an answer whatever happens, and once."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fencepost.http.edge import Edge
from fencepost.http.sites import read_sites

Done = list[tuple[str, str, int]]


def scope(method: str = "GET", path: str = "/v1/data/orders", headers: Any = ()) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"host", b"localhost"), *headers],
    }


async def run(app: ASGIApp, given: Scope) -> tuple[list[Message], Done]:
    sent: list[Message] = []
    done: Done = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    edge = Edge(
        app,
        done=lambda *answered: done.append(answered[:3]),
        access_log=False,
        sites=read_sites("127.0.0.1", "", ""),
        emit=lambda _: None,
    )
    try:
        await edge(given, receive, send)
    except RuntimeError:
        sent.append({"type": "raised"})
    return sent, done


def answering(status: int) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    return app


async def failing_before(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("a secret")


async def failing_after(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("a secret")


async def test_an_answer_gets_the_request_id_and_is_counted_once() -> None:
    sent, done = await run(answering(204), scope(headers=[(b"x-request-id", b"mine")]))
    assert sent[0]["headers"] == [(b"x-request-id", b"mine"), (b"x-content-type-options", b"nosniff")]
    assert done == [("GET", "/v1/data", 204)]


async def test_a_failure_before_the_answer_is_a_500_that_shows_nothing() -> None:
    sent, done = await run(failing_before, scope(headers=[(b"x-request-id", b"mine")]))
    assert (sent[0]["status"], done) == (500, [("GET", "/v1/data", 500)])
    assert (b"x-request-id", b"mine") in sent[0]["headers"]
    body = json.loads(sent[1]["body"])
    assert (body["code"], "secret" in str(body), "mine" in body["detail"]) == ("FP023", False, True)


async def test_a_failure_in_the_middle_of_an_answer_cuts_it_off() -> None:
    sent, done = await run(failing_after, scope())
    assert [message["type"] for message in sent] == ["http.response.start", "raised"]
    assert done == [("GET", "/v1/data", 200)]


async def test_head_reaches_the_application_as_get_and_is_counted_as_head() -> None:
    seen = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        seen.append(given["method"])
        await answering(200)(given, receive, send)

    _, done = await run(app, scope("HEAD"))
    assert (seen, done) == (["GET"], [("HEAD", "/v1/data", 200)])


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("GET", "/healthz", ("GET", "/healthz")),
        ("BREW", "/coffee", ("other", "other")),
        ("GET", "/problems/anything", ("GET", "/problems")),
        ("GET", "/v1/data/a/b/c", ("GET", "/v1/data")),
        ("GET", "/wp-login.php", ("GET", "other")),
    ],
)
async def test_labels_have_few_values(method: str, path: str, label: tuple[str, str]) -> None:
    _, done = await run(answering(200), scope(method, path))
    assert done[0][:2] == label


async def test_lifespan_passes_through() -> None:
    seen = []

    async def app(given: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(given["type"])

    await run(app, {"type": "lifespan"})
    assert seen == ["lifespan"]
