"""The authenticator: which header has a credential, what is kept for how long, and what is forgotten."""

import asyncio
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from tests.support.asking import EC, ED, OCT, RSA, SECRET, claims, encode, forged, hs256, public, sign, token
from tests.support.manual_clock import ManualClock, settled

from fencepost.server.fence.caller import ANONYMOUS, EVERY_ACCESS, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.http.guard import STANDING, leaving, refuse_if_over
from fencepost.server.identity import authenticator
from fencepost.server.identity.authenticator import Authenticator, Standing
from fencepost.server.identity.jwt import Expected, FixedKeys, JwtVerifier, read_patterns, read_role_path
from fencepost.server.identity.keys import KeySet, read_key_set, read_secret
from fencepost.server.times import TIMES, Times


class Verifier:
    """Takes what begins with its prefix; `bad` is refused. Counts."""

    def __init__(self, prefix: str = "t", ends: float | None = None) -> None:
        self.prefix, self.ends, self.asked = prefix, ends, 0
        self.says: Problem | None = None
        self.fails: BaseException | None = None
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def takes(self, credential: str) -> bool:
        return credential.startswith(self.prefix)

    async def verify(self, credential: str) -> Caller | Problem:
        self.asked += 1
        self.waiting.set()
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        if self.says is not None:
            return self.says
        if "bad" in credential:
            return Problem(INVALID_CREDENTIAL, "It is bad.")
        return Caller(f"{self.prefix}:{credential}", ends=self.ends)


async def test_a_known_header_is_not_verified_again_until_its_time_is_up() -> None:
    clock, verifier = ManualClock(), Verifier()
    there = Authenticator((verifier,), times=Times(clock=clock))
    assert there.known(b"Bearer t1") is None
    found = await there.identify(b"Bearer t1")
    assert there.known(b"Bearer t1") is found
    assert there.known(b"Bearer t2") is None
    await clock.advance(TIMES.identity.kept_for - 1)
    assert there.known(b"Bearer t1") is found
    await clock.advance(1)
    assert there.known(b"Bearer t1") is None
    assert verifier.asked == 1


async def test_a_token_that_ends_earlier_is_known_no_longer() -> None:
    clock = ManualClock()
    there = Authenticator((Verifier(ends=clock.now() + 10.0),), times=Times(clock=clock))
    await there.identify(b"Bearer t1")
    await clock.advance(9.9)
    assert there.known(b"Bearer t1") is not None
    await clock.advance(0.2)
    assert there.known(b"Bearer t1") is None


async def test_what_is_refused_is_not_kept() -> None:
    verifier = Verifier()
    there = Authenticator((verifier,))
    for _ in range(2):
        assert isinstance(await there.identify(b"Bearer t-bad"), Problem)
        assert there.known(b"Bearer t-bad") is None
    assert verifier.asked == 2


async def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "MOST_KEPT", 3)
    there = Authenticator((Verifier(),))
    for number in range(5):
        await there.identify(b"Bearer t%d" % number)
    assert [there.known(b"Bearer t%d" % number) is not None for number in range(5)] == [False, False, True, True, True]


async def test_forgetting_makes_all_be_verified_anew() -> None:
    there = Authenticator((Verifier(),))
    await there.identify(b"Bearer t1")
    there.forget()
    assert there.known(b"Bearer t1") is None


async def test_what_was_verified_by_keys_that_have_changed_meanwhile_is_not_kept() -> None:
    verifier = Verifier()
    there = Authenticator((verifier,))
    verifier.gate.clear()
    asking = asyncio.create_task(there.identify(b"Bearer t1"))
    await verifier.waiting.wait()
    there.forget()
    verifier.gate.set()
    assert isinstance(await asking, Caller)
    assert there.known(b"Bearer t1") is None


async def test_the_first_verifier_that_takes_it_decides() -> None:
    one, other = Verifier("t"), Verifier("fp_")
    there = Authenticator((one, other))
    assert (await there.identify(b"Bearer fp_1") or Problem).name == "fp_:fp_1"
    found = await there.identify(b"Bearer x")
    assert isinstance(found, Problem)
    assert found.name == "FP037"
    assert (one.asked, other.asked) == (0, 1)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", "FP036"),
        (b"Basic dDE6", "FP036"),
        (b"t1", "FP036"),
        (b"Bearer", "FP037"),
        (b"Bearer ", "FP037"),
        (b"Bearer t1 t2", "FP037"),
        (b"Bearer\tt1", "FP036"),
        (b"Bearer t1\x00", "FP037"),
        ("Bearer tä".encode(), "FP037"),
        (b"Bearer t" + b"x" * 9000, "FP037"),
        (b"Bearer Bearer t1", "FP037"),
    ],
)
async def test_a_header_without_one_bearer_credential_is_refused(header: bytes, code: str) -> None:
    verifier = Verifier()
    there = Authenticator((verifier,), Caller(ANONYMOUS))  # who has sent one is not taken for one who has not
    found = await there.identify(header)
    assert isinstance(found, Problem)
    assert (found.name, verifier.asked) == (code, 0)
    assert there.known(header) is None


async def test_the_schemes_case_does_not_count() -> None:
    there = Authenticator((Verifier(),))
    for header in (b"bearer t1", b"BEARER t1", b"Bearer  t1"):
        assert isinstance(await there.identify(header), Caller)


async def test_without_a_header_it_is_the_anonymous_caller_or_nobody() -> None:
    refused = await Authenticator((Verifier(),)).identify(None)
    assert isinstance(refused, Problem)
    assert refused.name == "FP036"
    anonymous = Caller(ANONYMOUS, "anon")
    there = Authenticator((Verifier(),), anonymous)
    assert there.known(None) is anonymous
    assert await there.identify(None) is anonymous


async def test_a_request_under_way_learns_that_its_credential_is_good_no_longer() -> None:
    clock, verifier = ManualClock(), Verifier()
    there = Authenticator((verifier,), times=Times(clock=clock))
    found = await there.identify(b"Bearer t1")
    assert isinstance(found, Caller)
    over = asyncio.create_task(there.refuses(found, b"Bearer t1"))
    await settled()
    there.forget()
    await settled()
    verifier.says = Problem(VERIFICATION_UNAVAILABLE, "The database is away.")
    await clock.advance(TIMES.identity.kept_for)  # although nothing has announced a change
    assert (verifier.asked, over.done()) == (3, False), "what cannot be found out is no reason to end"
    verifier.says = Problem(INVALID_CREDENTIAL, "It was revoked.")
    await clock.advance(TIMES.identity.unheard_for)
    assert over.done()


@pytest.mark.parametrize("fault", [RuntimeError("ours"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_a_fault_of_our_own_is_not_taken_for_a_credential_that_was_revoked(fault: BaseException) -> None:
    verifier, refused = Verifier(), list[Problem]()
    there = Authenticator((verifier,))
    found = await there.identify(b"Bearer t1")
    assert isinstance(found, Caller)
    scope = {STANDING: Standing(there, found, b"Bearer t1")}
    verifier.fails = fault

    async def ask() -> None:
        async with leaving(scope) as gone:
            there.forget()
            await asyncio.wait((gone,))
            refuse_if_over(scope, gone, refused.append)

    with pytest.raises(RuntimeError, match=r"ours|cancelled"):
        await ask()
    assert refused == []


def test_a_caller_may_do_what_it_might_when_its_rights_have_become_more_and_not_when_some_are_gone() -> None:
    before = Caller("key:1", "web", access=frozenset({"lock"}), locks=("a/*", "b"))
    more = {"access": EVERY_ACCESS}, {"locks": None}, {"locks": ("b", "c", "a/*")}
    less = {"access": frozenset({"read"})}, {"locks": ("a/*",)}, {"role": None}, {"claims": "{}"}, {"name": "key:2"}
    for changed in ({}, *more, *less):
        assert replace(before, **changed).may_do_what(before) == (changed not in less), changed
    assert not before.may_do_what(replace(before, locks=None))


def test_patterns_of_locks() -> None:
    assert read_patterns(["orders/*", "*", "report"]) == ("orders/*", "*", "report")
    assert read_patterns([]) == ()
    for bad in (None, "x", {"a": 1}, [1], [""], ["a*b"], ["**"], ["\n"], ["x" * 513], ["x"] * 101):
        with pytest.raises(ValueError, match="pattern"):
            read_patterns(bad)


# Tokens: what is accepted, and each way to make up one that is not.

ALL = KeySet((*read_key_set(public(RSA, EC, ED), secrets=False).keys, *read_secret(SECRET).keys))


def verifier(keys: KeySet | None = None, expected: Expected | None = None, now: float | None = None) -> JwtVerifier:
    return JwtVerifier(
        FixedKeys(keys or read_secret(SECRET)),
        expected or Expected(),
        **({} if now is None else {"now": lambda: now}),
        monotonic=lambda: 1000.0,
    )


async def accepted(credential: str, by: JwtVerifier | None = None) -> Caller:
    found = await (by or verifier()).verify(credential)
    assert isinstance(found, Caller), found
    return found


async def refused(credential: str, by: JwtVerifier | None = None) -> str:
    """Give the detail of the refusal, which has nothing of the token in it."""
    found = await (by or verifier()).verify(credential)
    assert isinstance(found, Problem), found
    assert (found.name, found.http_status) == ("FP037", 401)
    assert not any(part in str(found.body()) for part in credential.split(".") if len(part) > 8)
    return found.detail


@pytest.mark.parametrize(
    ("key", "alg"), [(OCT, "HS256"), (RSA, "RS256"), (EC, "ES256"), (ED, "Ed25519"), (ED, "EdDSA")]
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
async def test_a_token_of_each_kind_of_key_is_accepted(key: Key, alg: str) -> None:
    assert (await accepted(sign(claims(), key, alg), verifier(ALL))).role == "web"


async def test_the_caller_is_what_the_claims_say() -> None:
    given = claims(exp=2_000_000_100, iat=None, scope="openid read lock", locks=["orders/*", "report"])
    caller = await accepted(sign(given), verifier(now=2_000_000_000))
    assert caller.name == "jwt:https://id.example|worker-a"
    assert caller.role == "web"
    assert json.loads(caller.claims) == given
    assert caller.access == {"read", "lock"}
    assert caller.locks == ("orders/*", "report")
    assert caller.ends == 1000 + 100 + 30


async def test_without_scope_and_locks_nothing_is_narrowed() -> None:
    caller = await accepted(token())
    assert caller.access is EVERY_ACCESS
    assert caller.locks is None


async def test_a_scope_that_has_none_of_ours_allows_nothing() -> None:
    assert (await accepted(token(scope="openid email"))).access == frozenset()
    assert (await accepted(token(scope=""))).access == frozenset()
    assert (await accepted(token(scope="READ writes"))).access == frozenset()


async def test_identities_cannot_be_confused() -> None:
    names = [
        (await accepted(token(**changes))).name
        for changes in (
            {"iss": "a|b", "sub": "c"},
            {"iss": "a", "sub": "b|c"},
            {"iss": "a%7Cb", "sub": "c"},
            {"iss": None, "sub": "a|c"},
            {"iss": None, "sub": None},
            {"iss": None, "sub": "web"},
            {"iss": "web", "sub": None},
        )
    ]
    assert len(set(names)) == len(names)


async def test_tokens_without_a_subject_share_their_roles_identity() -> None:
    assert (await accepted(token(sub=None))).name == "jwt-role:https://id.example|web"
    no_role = verifier(expected=Expected(role_path=()))
    assert "no claim sub" in await refused(token(sub=None), no_role)


@pytest.mark.parametrize(
    ("credential", "why"),
    [
        pytest.param(forged({"alg": "none"}, claims()), "alg is not", id="none"),
        pytest.param(hs256({"alg": "none"}, claims()), "alg is not", id="none, as if signed"),
        pytest.param(hs256({"alg": "None"}, claims()), "alg is not", id="None"),
        pytest.param(hs256({"typ": "JWT"}, claims()), "no alg", id="no alg"),
        pytest.param(hs256({"alg": 5}, claims()), "no alg", id="alg is a number"),
        pytest.param(hs256({"alg": ["HS256"]}, claims()), "no alg", id="alg is a list"),
        pytest.param(sign(claims(), OCT, "HS512"), "alg is not", id="stronger than the key"),
        pytest.param(token().rpartition(".")[0] + ".", "signature", id="no signature"),
        pytest.param(sign(claims(), OctKey.import_key("x" * 40)), "signature", id="another secret"),
        pytest.param(hs256({"alg": "HS256", "crit": ["exp"], "exp": 1}, claims()), "crit", id="crit"),
        pytest.param(hs256({"alg": "HS256", "crit": []}, claims()), "crit", id="crit is empty"),
        pytest.param(hs256({"alg": "HS256", "b64": False, "crit": ["b64"]}, claims()), "crit", id="b64"),
        pytest.param(hs256({"alg": "HS256", "b64": True}, claims()), "b64", id="b64 alone"),
        pytest.param(hs256({"alg": "HS256", "jku": "https://evil.example/jwks"}, claims()), "jku", id="jku"),
        pytest.param(hs256({"alg": "HS256", "jwk": {"kty": "oct", "k": "AAAA"}}, claims()), "jwk", id="jwk"),
        pytest.param(hs256({"alg": "HS256", "x5u": "https://evil.example/cert"}, claims()), "x5u", id="x5u"),
        pytest.param(hs256({"alg": "HS256", "x5c": ["MII"]}, claims()), "x5c", id="x5c"),
        pytest.param(sign(claims(), RSA, "RS256", kid="../../../dev/null"), "alg is not", id="kid is a path"),
        pytest.param(forged({"alg": "HS256", "kid": "' OR 1=1 --"}, claims(), b"x"), "signature", id="kid is SQL"),
        pytest.param(hs256({"alg": "HS256", "kid": 1}, claims()), "kid", id="kid is a number"),
        pytest.param(hs256({"alg": "HS256", "kid": None}, claims()), "kid", id="kid is null"),
        pytest.param(hs256({"alg": "HS256", "kid": ""}, claims()), "kid", id="kid is empty"),
        pytest.param(hs256({"alg": "HS256", "kid": "k" * 300}, claims()), "kid", id="kid is long"),
        pytest.param(hs256(b'{"alg":"none","alg":"HS256"}', claims()), "a name twice", id="alg twice"),
        pytest.param(hs256(b"[]", claims()), "no JSON object", id="header is a list"),
        pytest.param(hs256(b"{", claims()), "no JSON", id="header is no JSON"),
        pytest.param(hs256(b"[" * 1200, claims()), "cannot be read", id="header is nested"),
        pytest.param(hs256(b"\xff", claims()), "UTF-8", id="header is no UTF-8"),
        pytest.param(hs256('{"alg":"HS256"}'.encode("utf-16"), claims()), "UTF-8", id="header is UTF-16"),
        pytest.param("e30=." + encode(claims()) + ".x", "base64url", id="header is padded"),
        pytest.param(hs256({"alg": "HS256", "pad": "x" * 3000}, claims()), "signature", id="header is large"),
        pytest.param(token() + "=", "signature", id="signature is padded"),
        pytest.param("..", "no JSON", id="parts are empty"),
    ],
)
async def test_what_an_attacker_makes_up_is_refused(credential: str, why: str) -> None:
    assert why in await refused(credential)


async def test_an_embedded_key_is_not_used() -> None:
    own = RSAKey.generate_key(2048)
    credential = sign(claims(), own, "RS256", jwk=own.as_dict(private=False))
    assert "jwk" in await refused(credential, verifier(ALL))


async def test_a_public_key_is_no_secret() -> None:
    """The confusion of algorithms: HS256 with the public key's text, which all know, as the secret."""
    only_rsa = read_key_set(public(RSA), secrets=False)
    for text in (RSA.as_pem(private=False), json.dumps(RSA.as_dict(private=False)).encode()):
        signed = f"{encode({'alg': 'HS256', 'kid': 'rsa-1'})}.{encode(claims())}"
        mac = hmac.new(text, signed.encode(), hashlib.sha256).digest()
        assert "alg is not" in await refused(f"{signed}.{encode(mac)}", verifier(only_rsa))


async def test_a_key_verifies_under_its_own_algorithm_only() -> None:
    by = verifier(read_key_set(public(RSA), secrets=False))
    for alg in ("PS256", "RS384", "RS512"):
        assert "alg is not" in await refused(sign(claims(), RSA, alg), by)


async def test_a_token_that_names_a_key_is_of_that_key() -> None:
    other = RSAKey.generate_key(2048, {"kid": "rsa-2"})
    by = verifier(read_key_set(public(RSA, other), secrets=False))
    assert "signature" in await refused(sign(claims(), other, "RS256", kid="rsa-1"), by)
    assert "no key" in await refused(sign(claims(), other, "RS256", kid="rsa-3"), by)
    await accepted(sign(claims(), other, "RS256"), by)


async def test_a_changed_payload_is_refused() -> None:
    head, _, signature = token().split(".")
    assert "signature" in await refused(f"{head}.{encode(claims(role='admin'))}.{signature}")


NOW = 2_000_000_000.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"exp": None}, "no claim exp", id="without an end"),
        pytest.param({"exp": NOW - 30}, "expired", id="expired"),
        pytest.param({"exp": "2000000600"}, "exp is no number", id="exp is text"),
        pytest.param({"exp": True}, "exp is no number", id="exp is true"),
        pytest.param({"nbf": NOW + 31}, "not valid yet", id="not yet valid"),
        pytest.param({"nbf": "x"}, "nbf is no number", id="nbf is text"),
        pytest.param({"iat": NOW + 31}, "in the future", id="issued in the future"),
        pytest.param({"iat": []}, "iat is no number", id="iat is a list"),
        pytest.param({"aud": "orders"}, "--jwt-aud", id="aud, and none is set"),
        pytest.param({"aud": 5}, "aud is neither", id="aud is a number"),
        pytest.param({"aud": ["x", 5]}, "aud is neither", id="aud has a number"),
        pytest.param({"role": None}, "no role", id="no role"),
        pytest.param({"role": ["web"]}, "no name of a role", id="role is a list"),
        pytest.param({"role": ""}, "no name of a role", id="role is empty"),
        pytest.param({"role": "r" * 64}, "no name of a role", id="role is long"),
        pytest.param({"role": "web\n"}, "no name of a role", id="role has a line break"),
        pytest.param({"sub": 5}, "sub is no text", id="sub is a number"),
        pytest.param({"sub": ""}, "sub is no text", id="sub is empty"),
        pytest.param({"sub": "s" * 513}, "sub is no text", id="sub is long"),
        pytest.param({"sub": "\x1b[2J"}, "sub is no text", id="sub has an escape"),
        pytest.param({"iss": []}, "iss is no text", id="iss is a list"),
        pytest.param({"scope": ["read"]}, "scope is no text", id="scope is a list"),
        pytest.param({"locks": "orders/*"}, "no list", id="locks is text"),
        pytest.param({"locks": [5]}, "no pattern", id="locks has a number"),
        pytest.param({"locks": [""]}, "no pattern", id="locks has an empty one"),
        pytest.param({"locks": ["a*b"]}, "at the end", id="locks has a star inside"),
        pytest.param({"locks": ["x"] * 101}, "more than 100", id="locks are many"),
        pytest.param({"note": "\ud800"}, "surrogate", id="half a surrogate"),
        pytest.param({"note": "\0"}, "U+0000", id="U+0000"),
    ],
)
async def test_claims_that_are_not_accepted_are_named(changes: dict[str, Any], why: str) -> None:
    base = {"exp": NOW + 100, "iat": NOW}
    assert why in await refused(token(**(base | changes)), verifier(now=NOW))


async def test_clocks_may_differ_by_thirty_seconds() -> None:
    for changes in ({"exp": NOW - 29.5}, {"nbf": NOW + 30}, {"iat": NOW + 30}):
        await accepted(token(**({"exp": NOW + 100, "iat": NOW} | changes)), verifier(now=NOW))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"sub":"a","role":"web","exp":9e9,"role":"admin"}', "a name twice"),
        (b'{"sub":"a","role":"web","exp":9e9,"deep":{"x":1,"x":2}}', "a name twice"),
        (b'{"sub":"a","role":"web","exp":NaN}', "NaN"),
        (b'{"sub":"a","role":"web","exp":Infinity}', "Infinity"),
        (b'{"sub":"a","role":"web","exp":1e999}', "no time"),
        (b'{"sub":"a","role":"web","exp":' + b"9" * 400 + b"}", "no time"),
        (b'{"sub":"a","role":"web","exp":' + b"9" * 5000 + b"}", "cannot be read"),
        (b"[1]", "no JSON object"),
        (b"\xff\xfe", "UTF-8"),
        (b"{" + b'"a":{' * 2000, "cannot be read"),
    ],
)
async def test_a_signed_payload_that_is_no_clean_json_is_refused(raw: bytes, why: str) -> None:
    assert why in await refused(sign(raw))


async def test_audience_and_issuer_are_as_set() -> None:
    by = verifier(expected=Expected(audience="orders", issuer="https://id.example"))
    await accepted(token(aud="orders"), by)
    await accepted(token(aud=["other", "orders"]), by)
    for aud in (None, "other", "order", ["other"], []):
        assert "another audience" in await refused(token(aud=aud), by)
    for iss in (None, "https://id.example/", "https://evil.example"):
        assert "another issuer" in await refused(token(aud="orders", iss=iss), by)


async def test_the_role_is_where_the_path_says() -> None:
    def by(*path: str | int) -> JwtVerifier:
        return verifier(expected=Expected(role_path=path))

    nested = token(realm_access={"roles": ["offline", "app"]})
    assert (await accepted(nested, by("realm_access", "roles", 1))).role == "app"
    for path in (("realm_access", "roles", 2), ("realm_access", 0), ("nothing",), ("role", "x")):
        assert "no role" in await refused(nested, by(*path))
    assert "no name" in await refused(nested, by("realm_access", "roles"))


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ('.roles[?(@ == "app_b")]', "app_b"),
        ('.roles[?(@ != "offline")]', "app_a"),
        ('.roles[?(@ ^== "app_")]', "app_a"),
        ('.roles[?(@ ==^ "_b")]', "app_b"),
        ('.roles[?(@ *== "p_b")]', "app_b"),
        ('.roles[?(@ == "app")]', None),
        ('.sub[?(@ *== "w")]', None),
    ],
)
async def test_the_role_is_the_first_of_a_list_that_compares_so(path: str, role: str | None) -> None:
    by = verifier(expected=Expected(role_path=read_role_path(path)))
    sent = token(roles=[7, "offline", "app_a", "app_b"])
    if role is None:
        assert "no role" in await refused(sent, by)
    else:
        assert (await accepted(sent, by)).role == role


async def test_without_a_role_the_anonymous_one_is_taken() -> None:
    by = verifier(expected=Expected(anonymous_role="anon"))
    caller = await accepted(token(role=None), by)
    assert (caller.role, caller.name) == ("anon", "jwt:https://id.example|worker-a")
    assert (await accepted(token(), by)).role == "web"


async def test_tokens_without_roles_can_be_set() -> None:
    assert (await accepted(token(), verifier(expected=Expected(role_path=())))).role is None


@pytest.mark.parametrize("key", [ECKey.generate_key("P-384"), OKPKey.generate_key("X25519")])
def test_other_curves_are_no_keys(key: Key) -> None:
    with pytest.raises(Exception, match="neither P-256 nor Ed25519"):
        read_key_set(public(key), secrets=False)
