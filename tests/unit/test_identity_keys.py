"""What an operator gives as the key: text, JWK, JWKS, PEM. What is no key is refused at start, without showing it."""

import json

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from tests.support.tokens import EC, ED, OCT, RSA, SECRET, public

from fencepost.identity.claims import RolePathError, Search, Step, read_role_path
from fencepost.identity.keys import KeysError, read_secret


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
REFUSED = {
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
        "a public key without its line",
    ),
    "a member that is none": (json.dumps({"keys": [*public(RSA)["keys"], {"kty": "x"}]}), "verifies no JWTs"),
    "PEM of another curve": (pem(ECKey.generate_key("P-384")), "neither P-256"),
    "PEM that is broken": ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "no public key"),
    "an ssh key": (f"ssh-rsa {'A' * 80}", "cannot be read|not safe"),
}


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
