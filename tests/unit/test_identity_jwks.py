"""A JWKS that its owner changes: fetched, kept, rotated; and servers that are away, slow or hostile. They are real."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from tests.support.asking import EC, RSA, claims, encode, public, sign
from tests.support.manual_clock import ManualClock
from tests.support.servers import JwksServer, answer, jwks_server

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.identity.jwt import ChangingKeys, Expected, FromFile, FromUrl, JwtVerifier, read_place
from fencepost.server.identity.keys import KeysError
from fencepost.server.observe.events import Event, KeysFetched, KeysNotFetched
from fencepost.server.times import TIMES, IdentityTimes, Times
from fencepost.testing.servers.processes import PATIENCE


class Seen:
    """Keys of a server, by a clock that tests move."""

    def __init__(self, server: JwksServer, times: IdentityTimes = TIMES.identity) -> None:
        self.clock = ManualClock()
        self.events: list[Event] = []
        times_and_clock = Times(clock=self.clock, identity=times)
        self.keys = ChangingKeys(FromUrl(server.url), self.events.append, secrets=False, times=times_and_clock)
        self.verifier = JwtVerifier(self.keys, Expected())
        self.authenticator = Authenticator((self.verifier,), times=times_and_clock)
        self.keys.changed = self.authenticator.forget

    async def verify(self, token: str) -> str:
        found = await self.verifier.verify(token)
        return found.name if isinstance(found, Problem) else "accepted"

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, KeysNotFetched)]


@asynccontextmanager
async def seen() -> AsyncIterator[tuple[JwksServer, Seen]]:
    async with jwks_server(public(RSA)) as server:
        yield server, Seen(server)


TOKEN = sign(claims(), RSA, "RS256", kid="rsa-1")
NEW = RSAKey.generate_key(2048, {"kid": "rsa-2"})
NEW_TOKEN = sign(claims(), NEW, "RS256", kid="rsa-2")


async def test_the_first_token_fetches_the_set() -> None:
    async with seen() as (server, there):
        assert [await there.verify(TOKEN), await there.verify(TOKEN)] == ["accepted", "accepted"]
        assert server.asked == 1
        assert there.events == [KeysFetched(1, ())]


async def test_a_byte_order_mark_before_a_set_is_left_out() -> None:
    async with seen() as (server, there):
        server.says = answer(b"\xef\xbb\xbf" + json.dumps(public(RSA)).encode())
        assert await there.verify(TOKEN) == "accepted"


async def test_an_unknown_kid_asks_once_in_thirty_seconds() -> None:
    async with seen() as (server, there):
        await there.verify(TOKEN)
        server.give(public(RSA, NEW))
        await there.clock.advance(TIMES.identity.jwks_asked_every - 1)
        assert await there.verify(NEW_TOKEN) == "FP037"
        assert server.asked == 1
        await there.clock.advance(1)
        assert await there.verify(NEW_TOKEN) == "accepted"
        for number in range(20):
            assert await there.verify(sign(claims(), NEW, "RS256", kid=f"made-up-{number}")) == "FP037"
        assert server.asked == 2


async def test_tokens_of_unknown_keys_wait_for_one_fetch() -> None:
    async with seen() as (server, there):
        await there.verify(TOKEN)
        server.give(public(RSA, NEW))
        server.gate.clear()
        server.waiting.clear()
        await there.clock.advance(TIMES.identity.jwks_asked_every)
        asking = [asyncio.create_task(there.verify(NEW_TOKEN)) for _ in range(10)]
        await server.waiting.wait()
        assert await there.verify(TOKEN) == "accepted"  # the known key does not wait
        server.gate.set()
        assert await asyncio.gather(*asking) == ["accepted"] * 10
        assert server.asked == 2


async def test_a_request_that_is_given_up_does_not_end_the_fetch_of_others() -> None:
    async with seen() as (server, there):
        server.gate.clear()
        first = asyncio.create_task(there.verify(TOKEN))
        await server.waiting.wait()
        second = asyncio.create_task(there.verify(TOKEN))
        await asyncio.sleep(0)
        first.cancel()
        server.gate.set()
        assert await second == "accepted"
        assert server.asked == 1


async def test_a_key_that_is_taken_out_ends_with_the_next_fetch() -> None:
    async with seen() as (server, there):
        header = f"Bearer {TOKEN}".encode()
        await there.keys.fetch()
        assert isinstance(await there.authenticator.identify(header), Caller)
        assert there.authenticator.known(header) is not None
        server.give(public(NEW))
        await there.keys.fetch()
        assert there.authenticator.known(header) is None
        assert await there.verify(TOKEN) == "FP037"
        assert there.events == [KeysFetched(1, ()), KeysFetched(1, ())]


async def test_the_last_good_set_is_kept_for_an_hour_and_no_longer() -> None:
    async with seen() as (server, there):
        await there.verify(TOKEN)
        server.says = answer(b"away", "503 Service Unavailable")
        await there.clock.advance(TIMES.identity.jwks_kept_for)
        await there.keys.fetch()
        assert await there.verify(TOKEN) == "accepted"
        await there.clock.advance(1)
        found = await there.verifier.verify(TOKEN)
        assert isinstance(found, Problem)
        assert (found.name, found.http_status, found.retry_after) == ("FP039", 503, 10)
        server.give(public(RSA))
        await there.keys.fetch()
        assert await there.verify(TOKEN) == "accepted"


async def test_the_background_fetches_at_once_and_again_after_a_failure() -> None:
    async with seen() as (server, there), there.clock.running():
        server.says = answer(b"", "500 Internal Server Error")
        async with there.keys.refreshed():
            async with asyncio.timeout(PATIENCE):
                while server.asked < 3:
                    await server.waiting.wait()
                    server.waiting.clear()
                server.give(public(RSA))
                while there.keys.current() is None:
                    await server.waiting.wait()
                    server.waiting.clear()
                    await there.keys.fetch()
        assert await there.verify(TOKEN) == "accepted"


async def test_closing_ends_a_fetch_that_hangs() -> None:
    async with seen() as (server, there):
        server.gate.clear()
        async with there.keys.refreshed():
            await server.waiting.wait()
        assert there.keys.current() is None


async def test_a_server_that_is_away_is_503() -> None:
    async with jwks_server({}) as server:
        there = Seen(server)
    assert await there.verify(TOKEN) == "FP039"
    assert "cannot be fetched" in there.reasons[0]


async def test_a_slow_server_is_given_up() -> None:
    async with seen() as (server, _):
        there = Seen(server, IdentityTimes(jwks_within=0.05))
        server.gate.clear()
        assert await there.verify(TOKEN) == "FP039"
        assert "did not come within" in there.reasons[0]


HOSTILE = {
    "huge": (answer(b'{"keys":[' + b" " * 300_000 + b"]}"), "more than 262144 bytes"),
    "endless": (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 1_000_000, "more than 262144 bytes"),
    "a redirect": (answer(b"", "302 Found", "Location: http://169.254.169.254/\r\n"), "answered 302"),
    "not found": (answer(b"{}", "404 Not Found"), "answered 404"),
    "no JSON": (answer(b"<html>"), "no JSON"),
    "no UTF-8": (answer(b"\xff\xff"), "UTF-8"),
    "a list": (answer(b"[]"), "no JSON object"),
    "nested": (answer(b"[" * 100_000), "nested"),
    "keys twice": (answer(b'{"keys":[],"keys":[]}'), "a name twice"),
    "no keys": (answer(b"{}"), "list of keys"),
    "keys is an object": (answer(b'{"keys":{}}'), "list of keys"),
    "empty": (answer(b'{"keys":[]}'), "it is empty"),
    "keys of other types": (answer(b'{"keys":[1,null,"x",[],{}]}'), "no key that verifies"),
    "many": (answer(json.dumps({"keys": [{}] * 65}).encode()), "more than 64"),
    "one kid twice": (answer(json.dumps({"keys": [*public(RSA)["keys"]] * 2}).encode()), "two keys with one kid"),
    "compressed": (
        answer(gzip.compress(json.dumps(public(RSA)).encode()), headers="Content-Encoding: gzip\r\n"),
        "encoding",
    ),
    "no HTTP": (b"hello\r\n\r\n", "cannot be fetched"),
    "nothing": (b"", "cannot be fetched"),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "cannot be fetched"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_answer_changes_no_keys(name: str) -> None:
    async with seen() as (server, there):
        await there.verify(TOKEN)
        server.says, why = HOSTILE[name]
        await there.keys.fetch()
        assert [why in reason for reason in there.reasons] == [True], there.reasons
        assert await there.verify(TOKEN) == "accepted"


SKIPPED = {
    "a published secret": (OctKey.generate_key(256).as_dict(), "was published"),
    "a private key": (RSA.as_dict(private=True), "private"),
    "for encryption": (public(RSA, use="enc")["keys"][0], "use is not sig"),
    "another algorithm": (public(RSA, alg="RS512")["keys"][0], "only RS256"),
    "RS256 for a curve": (public(EC, alg="RS256")["keys"][0], "only ES256"),
    "to sign not": (public(RSA, key_ops=["encrypt"])["keys"][0], "key_ops"),
    "a short RSA key": ({**public(RSA)["keys"][0], "n": encode(((1 << 1023) + 1).to_bytes(128))}, ">= 2048 bits"),
    "a long RSA key": ({**public(RSA)["keys"][0], "n": encode(((1 << 11_999) + 1).to_bytes(1500))}, "2048 to 8192"),
    "a giant RSA key": ({**public(RSA)["keys"][0], "n": "A" * 100_000}, "more than 2048 characters"),
    "exponent of one": ({**public(RSA)["keys"][0], "e": "AQ"}, "cannot be read"),
    "another curve": (ECKey.generate_key("P-521").as_dict(private=False), "neither P-256"),
    "a key of exchange": (OKPKey.generate_key("X25519").as_dict(private=False), "neither P-256"),
    "not on the curve": ({**public(EC)["keys"][0], "y": "A" * 43}, "cannot be read"),
    "kid is a number": (public(RSA, kid=5)["keys"][0], "kid is no text"),
    "n is a number": ({**public(RSA)["keys"][0], "n": 5}, "cannot be read"),
    "kty is unknown": ({"kty": "AKP", "pub": "x"}, "cannot be read"),
    "kty is a list": ({"kty": ["RSA"]}, "cannot be read"),
}


@pytest.mark.parametrize("name", SKIPPED)
async def test_keys_that_verify_no_tokens_here_are_skipped_and_named(name: str) -> None:
    member, why = SKIPPED[name]
    async with seen() as (server, there):
        server.give({"keys": [member, *public(NEW)["keys"]]})
        await there.keys.fetch()
        found = there.keys.current()
        assert found is not None
        assert [key.kid for key in found.keys] == ["rsa-2"]
        assert why in found.skipped[0]
        assert there.events == [KeysFetched(1, found.skipped)]


async def test_the_environments_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with seen() as (_, there):
        assert await there.verify(TOKEN) == "accepted"


async def test_a_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(public(RSA)))
    events: list[Event] = []
    keys = ChangingKeys(FromFile(path), events.append, secrets=True)
    verifier = JwtVerifier(keys, Expected())
    assert isinstance(await verifier.verify(TOKEN), Caller)
    path.write_text(json.dumps(public(NEW)))
    await keys.fetch()
    assert isinstance(await verifier.verify(TOKEN), Problem)
    assert isinstance(await verifier.verify(NEW_TOKEN), Caller)
    path.unlink()
    await keys.fetch()
    assert isinstance(await verifier.verify(NEW_TOKEN), Caller)
    assert isinstance(events[-1], KeysNotFetched)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://id.example/jwks", "use https"),
        ("http://127.0.0.1.evil.example/jwks", "use https"),
        ("http://localhost.evil.example/jwks", "use https"),
        ("ftp://id.example/jwks", "neither an https URL"),
        ("file:///etc/jwks.json", "neither an https URL"),
        ("https://user:secret@id.example/jwks", "password"),
        ("https:///jwks", "neither an https URL"),
        ("https://id.example/jwks#x", "neither an https URL"),
        ("https://id.example:port/jwks", "cannot be read"),
        ("https://[::1/jwks", "cannot be read"),
    ],
)
def test_places_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(KeysError, match=why):
        read_place(text)


@pytest.mark.parametrize(
    "text", ["https://id.example/jwks?x=1", "http://127.0.0.1:8080/jwks", "http://[::1]/jwks", "http://localhost/jwks"]
)
def test_places_that_are_taken(text: str) -> None:
    assert read_place(text) == FromUrl(text)
