"""What an operator gives as the key: text, JWK, JWKS, PEM. What is no key is refused at start, without showing it."""

import asyncio
import gzip
import json
import random
import ssl
import string
from base64 import b32encode, b64encode, b85encode, encodebytes
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from tests.support.asking import EC, ED, OCT, RSA, SECRET, claims, encode, public, sign, token
from tests.support.manual_clock import ManualClock
from tests.support.servers import JwksServer, answer, jwks_server, self_signed

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.identity import jwt
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.identity.jwt import (
    ChangingKeys,
    Expected,
    FromFile,
    FromUrl,
    JwtVerifier,
    RolePathError,
    Search,
    Step,
    read_place,
    read_role_path,
)
from fencepost.server.identity.keys import KeysError, looks_like, read_secret, same
from fencepost.server.observe.events import Event, KeysFetched, KeysNotFetched
from fencepost.server.times import TIMES, IdentityTimes, Times
from fencepost.testing.servers.processes import PATIENCE


def kinds(text: str) -> list[tuple[str | None, str]]:
    return [(key.kid, key.algorithm) for key in read_secret(text).keys]


def pem(key: RSAKey | ECKey | OKPKey) -> str:
    return key.as_pem(private=False).decode()


def test_each_form_is_read() -> None:
    assert kinds(SECRET) == [(None, "HS256")]
    assert kinds(f"{SECRET}\n") == [(None, "HS256")]
    assert read_secret(f"{SECRET}\n") == read_secret(SECRET)
    assert kinds("ä" * 16) == [(None, "HS256")]  # 32 bytes
    assert kinds(json.dumps(OCT.as_dict())) == [(None, "HS256")]
    assert kinds(json.dumps(RSA.as_dict(private=False))) == [("rsa-1", "RS256")]
    assert kinds(json.dumps(public(RSA, EC, ED))) == [("rsa-1", "RS256"), ("ec-1", "ES256"), ("ed-1", "Ed25519")]
    assert [kinds(pem(key)) for key in (RSA, EC, ED)] == [[(None, alg)] for alg in ("RS256", "ES256", "Ed25519")]


SHORT = OctKey.generate_key(248)
JWKS = json.dumps(public(RSA, EC))
KNOWN = {
    "a JWKS in quotes": (f"'{JWKS}'", "a JWK"),
    "a JWKS in JSON's quotes": (json.dumps(JWKS), "a JWK"),
    "a JWKS after a comment": (f"# ours\n{JWKS}", "a JWK"),
    "a JWKS as a bare array": (json.dumps(public(RSA)["keys"]), "a JWK"),
    "a JWKS as YAML": (f"keys:\n- kty: EC\n  x: {'A' * 43}", "a JWK"),
    "a JWKS in percents": (quote(JWKS), "a JWK"),
    "a JWKS in a JWK": (json.dumps(OctKey.import_key(f"'{JWKS}'").as_dict()), "a JWK"),
    "base64 of a JWKS": (b64encode(JWKS.encode()).decode(), "JSON as base64"),
    "base64 of a PEM": (b64encode(pem(RSA).encode()).decode(), "a key"),
    "base64 of a PEM, for URLs": (encode(pem(EC).encode()), "a key"),
    "base64 of base64 of a PEM, in lines": (encodebytes(encodebytes(pem(ED).encode())).decode(), "a key"),
    "a PEM after something": (f"subject=CN\n{pem(RSA)}", "a key"),
    "a public key as hex": (RSA.as_der(private=False).hex(), "a key"),
    "a private key without its lines": (b64encode(RSA.as_der(private=True)).decode(), "a private key"),
    "a private key with a password": (encode(EC.as_der(private=True, password="p")), "a private key"),
    "an ssh key without its name": (encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + b"k" * 32), "a key"),
    "a URL": ("https://id.example/.well-known/jwks.json", "a URL"),
    "a URL in quotes": ('"https://id.example/.well-known/jwks.json"', "a URL"),
    "a URL after a comment": ("# ours\nhttps://id.example/jwks", "a URL"),
    "a source": ("r=redis://:password@redis.example:6379/0", "a URL"),
    "a JWT": (token(), "a token"),
    "a header": (f"Bearer {token()}", "a token"),
    "an API key": (f"fp_k1_{'a' * 43}", "a token"),
    "a page": ("<!DOCTYPE html><html><body>Bad Gateway</body></html>", "a page"),
    "XML": (f"<md:Entity id='1'>{'a' * 40}</md:Entity>", "a page"),
    "a list": (json.dumps(["a" * 40]), "a JSON document"),
    "a path": (__file__, "for --jwt-secret-file"),
}
REFUSED = KNOWN | {
    "empty": ("", "at least 32 bytes, not 0"),
    "blank": (" \n", "at least 32 bytes, not 0"),
    "short": ("x" * 31, "at least 32 bytes, not 31"),
    "a short JWK": (json.dumps(SHORT.as_dict()), "at least 32 bytes, not 31"),
    "an empty JWK": (json.dumps({"kty": "oct", "k": ""}), "cannot be read"),
    "no JSON": ("{" + "x" * 40, "cannot be read"),
    "JSON twice": ('{"kty":"oct","kty":"RSA"}', "a name twice"),
    "a private JWK": (json.dumps(RSA.as_dict(private=True)), "private key"),
    "a private PEM": (RSA.as_pem(private=True).decode(), "private key"),
    "a private key in a set": (json.dumps({"keys": [EC.as_dict(private=True)]}), "private key"),
    "a public key without its lines": (
        "".join(RSA.as_pem(private=False).decode().strip().splitlines()[1:-1]),
        "a key or certificate",
    ),
    "a member that is none": (json.dumps({"keys": [*public(RSA)["keys"], {"kty": "x"}]}), "verifies no JWTs"),
    "PEM of another curve": (pem(ECKey.generate_key("P-384")), "neither P-256"),
    "PEM that is broken": ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "no public key"),
    "an ssh key": (f"ssh-rsa {'A' * 80}", "a key or certificate"),
}


def test_a_byte_order_mark_is_left_out() -> None:
    for text in (SECRET, JWKS, pem(RSA)):
        assert same(read_secret(f"\ufeff{text}\r\n").keys, read_secret(text).keys)


def test_what_is_random_or_a_phrase_is_a_secret() -> None:
    chance = random.Random(46)
    signs = string.digits + string.ascii_letters + string.punctuation
    for _ in range(500):
        raw = chance.randbytes(chance.choice((32, 33, 48, 64)))
        given = [b64encode(raw), encodebytes(raw), b32encode(raw), raw.hex().encode(), b85encode(raw), raw]
        given.append("".join(chance.choices(signs, k=64)).encode())
        assert [looks_like(each) for each in given] == [None] * len(given), given
    for text in (
        "correct horse battery staple, twice",
        f'"{SECRET}"',
        f"# {SECRET}",
        "9" * 40,
        "see https://a.example/ or do not see it",
    ):
        assert kinds(text) == [(None, "HS256")], text


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_key_is_refused_and_not_shown(name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(KeysError, match=why) as caught:
        read_secret(text)
    assert "\n" not in str(caught.value)
    assert not any(part in str(caught.value) for part in text.split('"') if len(part) > 20)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        (".role", ("role",)),
        (".realm_access.roles[0]", ("realm_access", "roles", 0)),
        ('."https://shop.example/role"', ("https://shop.example/role",)),
        ('.a."b c"[10].d-e', ("a", "b c", 10, "d-e")),
        ('.roles[?(@ == "web")]', ("roles", Search("==", "web"))),
        ('.a[0][?(@==^"")]', ("a", 0, Search("==^", ""))),
    ],
)
def test_paths_of_roles(text: str, path: tuple[Step, ...]) -> None:
    assert read_role_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        *("role", ".", "..a", "[0]", ".a[", ".a[-1]", ".a[x]", '."a', ".a b", ".a[?(@)]", " .a"),
        *(
            '[?(@ == "a")]',
            '.a[?(@ == "a")].b',
            '.a[?(@ == "a")][?(@ == "a")]',
            '.a[?(@ < "a")]',
            ".a[?(@ == a)]",
            ".a[1:]",
        ),
    ],
)
def test_paths_that_are_none(text: str) -> None:
    with pytest.raises(RolePathError, match="no path of claims"):
        read_role_path(text)


# A JWKS that its owner changes: fetched, kept, rotated; and servers that are away, slow or hostile. They are real.


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


@pytest.mark.parametrize(
    ("says", "why"),
    [
        pytest.param(answer(b'{"keys":[' + b" " * 300_000 + b"]}"), "more than 262144 bytes", id="huge"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 1_000_000, "more than 262144 bytes", id="endless"),
        pytest.param(
            answer(b"", "302 Found", "Location: http://169.254.169.254/\r\n"), "answered 302", id="a redirect"
        ),
        pytest.param(answer(b"{}", "404 Not Found"), "answered 404", id="not found"),
        pytest.param(answer(b"<html>"), "no JSON", id="no JSON"),
        pytest.param(answer(b"\xff\xff"), "UTF-8", id="no UTF-8"),
        pytest.param(answer(b"[]"), "no JSON object", id="a list"),
        pytest.param(answer(b"[" * 100_000), "nested", id="nested"),
        pytest.param(answer(b'{"keys":[],"keys":[]}'), "a name twice", id="keys twice"),
        pytest.param(answer(b"{}"), "list of keys", id="no keys"),
        pytest.param(answer(b'{"keys":{}}'), "list of keys", id="keys is an object"),
        pytest.param(answer(b'{"keys":[]}'), "it is empty", id="empty"),
        pytest.param(answer(b'{"keys":[1,null,"x",[],{}]}'), "no key that verifies", id="keys of other types"),
        pytest.param(answer(json.dumps({"keys": [{}] * 65}).encode()), "more than 64", id="many"),
        pytest.param(
            answer(json.dumps({"keys": [*public(RSA)["keys"]] * 2}).encode()),
            "two keys with one kid",
            id="one kid twice",
        ),
        pytest.param(
            answer(gzip.compress(json.dumps(public(RSA)).encode()), headers="Content-Encoding: gzip\r\n"),
            "encoding",
            id="compressed",
        ),
        pytest.param(b"hello\r\n\r\n", "cannot be fetched", id="no HTTP"),
        pytest.param(b"", "cannot be fetched", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "cannot be fetched", id="cut off"),
    ],
)
async def test_a_hostile_answer_changes_no_keys(says: bytes, why: str) -> None:
    async with seen() as (server, there):
        await there.verify(TOKEN)
        server.says = says
        await there.keys.fetch()
        assert [why in reason for reason in there.reasons] == [True], there.reasons
        assert await there.verify(TOKEN) == "accepted"


@pytest.mark.parametrize(
    ("member", "why"),
    [
        pytest.param(OctKey.generate_key(256).as_dict(), "was published", id="a published secret"),
        pytest.param(RSA.as_dict(private=True), "private", id="a private key"),
        pytest.param(public(RSA, use="enc")["keys"][0], "use is not sig", id="for encryption"),
        pytest.param(public(RSA, alg="RS512")["keys"][0], "only RS256", id="another algorithm"),
        pytest.param(public(EC, alg="RS256")["keys"][0], "only ES256", id="RS256 for a curve"),
        pytest.param(public(RSA, key_ops=["encrypt"])["keys"][0], "key_ops", id="to sign not"),
        pytest.param(
            {**public(RSA)["keys"][0], "n": encode(((1 << 1023) + 1).to_bytes(128))},
            ">= 2048 bits",
            id="a short RSA key",
        ),
        pytest.param(
            {**public(RSA)["keys"][0], "n": encode(((1 << 11_999) + 1).to_bytes(1500))},
            "2048 to 8192",
            id="a long RSA key",
        ),
        pytest.param({**public(RSA)["keys"][0], "n": "A" * 100_000}, "more than 2048 characters", id="a giant RSA key"),
        pytest.param({**public(RSA)["keys"][0], "e": "AQ"}, "cannot be read", id="exponent of one"),
        pytest.param(ECKey.generate_key("P-521").as_dict(private=False), "neither P-256", id="another curve"),
        pytest.param(OKPKey.generate_key("X25519").as_dict(private=False), "neither P-256", id="a key of exchange"),
        pytest.param({**public(EC)["keys"][0], "y": "A" * 43}, "cannot be read", id="not on the curve"),
        pytest.param(public(RSA, kid=5)["keys"][0], "kid is no text", id="kid is a number"),
        pytest.param({**public(RSA)["keys"][0], "n": 5}, "cannot be read", id="n is a number"),
        pytest.param({"kty": "AKP", "pub": "x"}, "cannot be read", id="kty is unknown"),
        pytest.param({"kty": ["RSA"]}, "cannot be read", id="kty is a list"),
    ],
)
async def test_keys_that_verify_no_tokens_here_are_skipped_and_named(member: dict[str, Any], why: str) -> None:
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


# A JWKS by https: whom the gateway believes.


@pytest.fixture
def trusting() -> Iterator[Callable[[], None]]:
    """Give what has certificates be trusted as the environment says now."""
    yield jwt._tls.cache_clear  # noqa: SLF001 - a process reads them once
    jwt._tls.cache_clear()  # noqa: SLF001


async def test_keys_come_only_from_who_has_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusting: Callable[[], None]
) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, certificate.with_name("key.pem"))
    async with jwks_server(public(RSA), tls) as server:
        with pytest.raises(KeysError, match="CERTIFICATE_VERIFY_FAILED"):
            await FromUrl(server.url)()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting()
        assert json.loads(await FromUrl(server.url)()) == public(RSA)
        with pytest.raises(KeysError, match="CERTIFICATE_VERIFY_FAILED"):  # it is for 127.0.0.1
            await FromUrl(server.url.replace("127.0.0.1", "localhost"))()
