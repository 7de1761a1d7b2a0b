"""The token that requests carry: when it is asked for, and when it is asked for again."""

import asyncio
import base64
import json
import re
import threading
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from tests.support.manual_clock import ManualClock

from fencepost.client import (
    Client,
    Token,
    Unauthenticated,
    Unavailable,
    token_from_environment,
    token_from_file,
)
from fencepost.client.http import Credentials, Retry, end_of
from fencepost.testing.servers.processes import PATIENCE, eventually

NOW = 1_800_000_000.0


def jwt(ends: object) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


class Giver:
    """Gives these one after the other, and the last one again; an exception is raised."""

    def __init__(self, *tokens: str | Exception) -> None:
        self._tokens = tokens
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        found = self._tokens[min(self.asked, len(self._tokens)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


class Gateway(httpx.AsyncBaseTransport):
    """A mock that accepts some tokens."""

    def __init__(self, *accepted: str) -> None:
        self.accepted = {f"Bearer {each}" for each in accepted}
        self.seen: list[str | None] = []
        self.done: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        presented = request.headers.get("authorization")
        self.seen.append(presented)
        if presented in self.accepted:
            self.done.append(f"{request.method} {request.url.path}")
            return httpx.Response(200, json=[])
        problem = {"code": "FP037", "detail": "The token has ended.", "status": 401}
        return httpx.Response(401, json=problem, headers={"content-type": "application/problem+json"})


def test_the_end_of_a_jwt_is_read_and_nothing_else_of_it() -> None:
    assert end_of(jwt(NOW)) == NOW
    for other in ("fp_a_b", "a.b.c", jwt(None), jwt("soon"), jwt([]), "e30.W10.x", "..", "a.b", "é.é.é", jwt({})):
        assert end_of(other) is None, other


async def test_a_token_is_asked_for_once_by_all() -> None:
    give = Giver("one")
    credentials = Credentials(give, ManualClock())
    assert set(await asyncio.gather(*(credentials.current() for _ in range(20)))) == {"one"}
    assert give.asked == 1


@pytest.mark.parametrize(("ends_in", "renewed_after"), [(3600, 3570), (100, 80)])
async def test_a_jwt_is_renewed_before_it_ends(ends_in: float, renewed_after: float) -> None:
    clock = ManualClock()
    start = clock.now()
    give = Giver(jwt(NOW + ends_in), jwt(NOW + 9000))
    credentials = Credentials(give, clock, wall=lambda: NOW + clock.now() - start)
    first = await credentials.current()
    await clock.advance(renewed_after - 1)
    assert (await credentials.current(), give.asked) == (first, 1)
    await clock.advance(1)
    second = await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert (set(second), give.asked) == ({jwt(NOW + 9000)}, 2)


async def test_a_renewal_that_fails_leaves_the_token_that_there_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    start = clock.now()
    give = Giver(jwt(NOW + 100), OSError("the identity provider is away"), jwt(NOW + 500))
    credentials = Credentials(give, clock, wall=lambda: NOW + clock.now() - start)
    first = await credentials.current()
    assert first is not None
    await clock.advance(90)
    assert [await credentials.current() for _ in range(3)] == [first] * 3
    assert give.asked == 2, "it is not asked again at once"
    assert "the identity provider is away" in caplog.text
    assert first not in caplog.text
    await clock.advance(1)
    assert await credentials.current() == jwt(NOW + 500)


async def test_a_clock_that_is_wrong_asks_for_no_token_again_and_again() -> None:
    give = Giver(jwt(NOW - 1000))
    credentials = Credentials(give, ManualClock(), wall=lambda: NOW)
    for _ in range(5):
        await credentials.current()
    assert give.asked == 1


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "good"


class Later:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield
        return "good"


@pytest.mark.parametrize("token", ["good", lambda: "good", coroutine, Later])
async def test_every_form_of_a_token(token: Token) -> None:
    gateway = Gateway("good")
    async with Client("http://x", token=token, transport=gateway) as client:
        await client.select("orders")
        await client.select("orders")
    assert gateway.seen == ["Bearer good"] * 2


async def test_a_refused_token_is_asked_for_once_more() -> None:
    give, gateway = Giver("old", "new"), Gateway("new")
    async with Client("http://x", token=give, transport=gateway) as client:
        await client.select("orders")
        await client.select("orders")
    assert (gateway.seen, give.asked) == (["Bearer old", "Bearer new", "Bearer new"], 2)


async def test_a_stream_is_opened_with_the_next_token() -> None:
    """The mock's streams end at once and have no events: the observer opens the next one."""
    gateway = Gateway("new")

    async def opened() -> bool:
        return len(gateway.done) > 1

    retry = Retry(first=0.001, longest=0.001)
    async with Client("http://x", token=Giver("old", "new"), transport=gateway, retry=retry) as client:
        observing = asyncio.create_task(anext(client.leaders("scheduler")))
        await eventually(opened, what="a second stream")
        observing.cancel()
        await asyncio.wait([observing])
    assert gateway.seen[:3] == ["Bearer old", "Bearer new", "Bearer new"]


async def test_many_refusals_at_once_ask_once() -> None:
    give, gateway = Giver("old", "new", "newer"), Gateway("old")
    async with Client("http://x", token=give, transport=gateway) as client:
        await client.select("orders")
        gateway.accepted = {"Bearer new"}
        await asyncio.gather(*(client.select("orders") for _ in range(10)))
    assert give.asked == 2


async def test_a_token_that_stays_refused_is_an_error_of_its_own() -> None:
    for token, sent in (("bad", 1), (Giver("bad"), 1), (Giver("bad", "worse"), 2)):
        gateway = Gateway()
        async with Client("http://x", token=token, transport=gateway) as client:
            with pytest.raises(Unauthenticated, match=r"The token has ended\. \(FP037\)") as raised:
                await client.select("orders")
        assert (raised.value.status, raised.value.code, len(gateway.seen)) == (401, "FP037", sent)


async def test_an_acquire_that_is_refused_for_its_token_is_withdrawn_as_soon_as_there_is_another() -> None:
    give, gateway = Giver("old", "old", "new"), Gateway("new")
    async with Client("http://x", token=give, transport=gateway) as client:
        with pytest.raises(Unauthenticated):  # its key was rotated while it waited, and the gateway keeps the grant
            await client.lock("job").__aenter__()
    assert gateway.done == ["DELETE /v1/leases"]


async def test_what_gives_no_token_sends_nothing() -> None:
    gateway = Gateway("good")
    for give in (Giver(OSError("no network")), Giver(""), Giver("two words"), Giver("e\nvil")):
        once = Retry(patience=0)
        async with Client("http://x", token=give, transport=gateway, retry=once) as client:
            with pytest.raises(Unavailable, match="no token could be had"):
                await client.select("orders")
    assert gateway.seen == []
    give = Giver(OSError("no network"), "good")
    async with Client("http://x", token=give, transport=gateway, retry=Retry(PATIENCE, 0.001, 0.001)) as client:
        await client.select("orders")


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for bad in ("", "zwei Wörter", "a b", "a\r\nX: y"):
        with pytest.raises(ValueError, match="a token is printable ASCII") as raised:
            Client("http://x", token=bad)
        assert not bad or bad not in str(raised.value)
    with pytest.raises(ValueError, match="there is a header Authorization already"):
        Client("http://x", token="a", headers={"authorization": "Basic x"})


def test_a_file_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    give = token_from_file(file)
    assert give() == "one"
    file.write_text("\ufefftwo\n\n", "utf-8")
    assert give() == "two", "a byte order mark is no part of it"
    for bad, why in ((b" \n", "it is empty"), (b"a\nb\n", "it has more than a token"), (b"\xff", "it is no text")):
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: {why}"):
            give()
    file.write_text("two")
    for name in ("FENCEPOST_API_TOKEN", "FENCEPOST_API_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("FENCEPOST_API_TOKEN", "three")
    assert token_from_environment() == "three"
    monkeypatch.setenv("FENCEPOST_API_TOKEN_FILE", str(file))
    with pytest.raises(ValueError, match="are both set"):
        token_from_environment()
    monkeypatch.delenv("FENCEPOST_API_TOKEN")
    found = token_from_environment()
    assert callable(found)
    assert found() == "two"


async def test_a_slow_callable_holds_nothing_else_up() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def give() -> str:
        asked.set()
        assert go_on.wait(30)
        return "good"

    async with Client("http://x", token=give, transport=Gateway("good")) as client:
        reading = asyncio.create_task(client.select("orders"))
        await asyncio.to_thread(asked.wait, 30)  # the event loop is free, or this would hang
        go_on.set()
        await reading
