"""What an operator gives as the key: text, JWK, JWKS, PEM. What is no key is refused at start, without showing it."""

import json
import random
import string
from base64 import b32encode, b64encode, b85encode, encodebytes
from urllib.parse import quote

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from tests.support.asking import EC, ED, OCT, RSA, SECRET, encode, public, token

from fencepost.server.identity.jwt import RolePathError, Search, Step, read_role_path
from fencepost.server.identity.keys import KeysError, looks_like, read_secret, same


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
