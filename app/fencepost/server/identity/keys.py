"""Keys that verify JWTs. A key says by which algorithm; what a JWT says about itself only has to agree.

HS256, RS256, ES256, Ed25519. Text of a setting or a file, or a JWKS that was fetched, becomes VerifyingKeys here.
"""

import binascii
import codecs
import json
import os
import re
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key
from joserfc.jws import JWSRegistry, deserialize_compact

from fencepost.server.setting_files import plain
from fencepost.server.startup import StartupError

SECRET_BYTES: Final = 32
"""The shortest secret: HMAC with SHA-256 is as strong as its key, up to that."""
MOST_KEYS: Final = 64
"""Keys of one set."""
_RSA_BITS: Final = range(2048, 8193)
"""Shorter ones are weak; longer ones would take long for each JWT."""
_LONGEST_MEMBER: Final = 2048
"""Characters: a modulus of 8192 bits has 1366."""
_HEADER_BYTES: Final = 2048
_NAMES: Final = {"HS256": ("HS256",), "RS256": ("RS256",), "ES256": ("ES256",), "Ed25519": ("Ed25519", "EdDSA")}
"""What the header `alg` may say, for each algorithm of a key. EdDSA is the older name of Ed25519 (RFC 9864)."""
_PEM: Final = "-----BEGIN"


class KeysError(StartupError):
    """A key cannot be used. The message is one line, and has nothing of the key."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """`kid`: its name; None: it has none, and verifies JWTs whatever key they name."""

    kid: str | None
    algorithm: str
    key: Key

    def named(self, alg: str) -> bool:
        """Say whether a JWT whose header has this `alg` may be of this key."""
        return alg in _NAMES[self.algorithm]

    def payload(self, token: str, alg: str) -> bytes | None:
        """Give the payload of a JWT that this key has signed; None: it has not. `alg`: as the JWT says, and
        `named` has allowed.
        """
        registry = JWSRegistry(algorithms=[alg], strict_check_header=False)
        registry.max_header_length = _HEADER_BYTES
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)  # about the name EdDSA
                return deserialize_compact(token, self.key, registry=registry).payload
        except (JoseError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class KeySet:
    """`skipped`: which members of the set verify no JWTs here, and why."""

    keys: tuple[VerifyingKey, ...]
    skipped: tuple[str, ...] = ()

    def candidates(self, kid: str | None, alg: str) -> list[VerifyingKey]:
        return [each for each in self.keys if (kid is None or each.kid is None or each.kid == kid) and each.named(alg)]

    def has(self, kid: str | None) -> bool:
        return kid is None or any(each.kid is None or each.kid == kid for each in self.keys)


def read_secret(text: str) -> KeySet:
    """Read what a setting has: a text that is a secret, a JWK, a JWKS, or a public key as PEM. Raises KeysError."""
    text = plain(text)
    if text.startswith(_PEM):
        return KeySet((_of_pem(text),))
    if text.startswith("{"):
        try:
            found = read_object(text.encode())
        except ValueError as error:
            raise KeysError(f"the JWK or JWKS cannot be read: {error}") from None
        return _whole(found)
    if os.path.isfile(text):  # noqa: PTH113 - a secret that is too long for a path is none
        raise KeysError("it is the path of a file, which is for --jwt-secret-file")
    return KeySet((_of_secret(text.encode()),))


def read_key_set(document: Mapping[str, Any], *, secrets: bool) -> KeySet:
    """Read a JWKS. Members that verify no JWTs here are skipped. `secrets`: it may have HS256 keys, because it was
    not published. Raises KeysError.
    """
    members = document.get("keys")
    if not isinstance(members, list):
        raise KeysError("a JWKS is an object with a list of keys in it")
    if len(members) > MOST_KEYS:
        raise KeysError(f"the JWKS has more than {MOST_KEYS} keys")
    keys: list[VerifyingKey] = []
    skipped: list[str] = []
    for number, member in enumerate(members):
        try:
            keys.append(_of_jwk(member, secrets=secrets))
        except KeysError as error:
            skipped.append(f"key {number}: {error}")
    named = [each.kid for each in keys if each.kid is not None]
    if len(set(named)) != len(named):
        raise KeysError("the JWKS has two keys with one kid")
    if not keys:
        raise KeysError(f"the JWKS has no key that verifies JWTs ({'; '.join(skipped[:3]) or 'it is empty'})")
    return KeySet(tuple(keys), tuple(skipped))


def _whole(found: Mapping[str, Any]) -> KeySet:
    """Read what an operator has set: what is in it is meant, so nothing is skipped."""
    if "keys" not in found:
        return KeySet((_of_jwk(found, secrets=True),))
    read = read_key_set(found, secrets=True)
    if read.skipped:
        raise KeysError(f"the JWKS has a member that verifies no JWTs: {read.skipped[0]}")
    return read


def _require_unknown(secret: bytes) -> None:
    """Refuse a secret that others may know: who knows it can sign JWTs."""
    if found := looks_like(secret):
        raise KeysError(f"it looks like {found}: others may know it, and so it is no secret")


def _of_secret(secret: bytes) -> VerifyingKey:
    _require_unknown(secret)
    if len(secret) < SECRET_BYTES:
        raise KeysError(f"a secret has at least {SECRET_BYTES} bytes, not {len(secret)}: openssl rand -base64 32")
    return VerifyingKey(None, "HS256", _checked(_imported(secret, OctKey)))


def _of_pem(text: str) -> VerifyingKey:
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            key = _imported(text.encode(), kind)
        except KeysError:
            continue
        return VerifyingKey(None, _algorithm(key), _checked(key))
    raise KeysError("the PEM is no public key of RSA, P-256 or Ed25519")


def _of_jwk(member: object, *, secrets: bool) -> VerifyingKey:
    """Read one key. Raises KeysError."""
    if not isinstance(member, dict):
        raise KeysError("it is no JWK")
    kid = member.get("kid")
    if kid is not None and not (isinstance(kid, str) and kid):
        raise KeysError("its kid is no text")
    if member.get("use", "sig") != "sig":
        raise KeysError("its use is not sig")
    operations = member.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not {"verify", "sign"}.intersection(map(str, operations)):
        raise KeysError("its key_ops have no verify")
    if member.get("kty") == "oct" and not secrets:
        raise KeysError("it is a secret, and was published")
    # What else is in it (certificates, dates) is not looked at.
    used = {name: member[name] for name in ("kty", "n", "e", "crv", "x", "y", "k") if name in member}
    if any(isinstance(value, str) and len(value) > _LONGEST_MEMBER for value in used.values()):
        raise KeysError(f"it has a member of more than {_LONGEST_MEMBER} characters")
    if "d" in member:
        raise KeysError("it is a private key, and the gateway needs the public one only")
    key = _checked(_imported(used, None))
    if isinstance(key, OctKey):
        _require_unknown(key.raw_value)
    algorithm = _algorithm(key)
    said = member.get("alg", algorithm)
    if said not in _NAMES[algorithm]:
        raise KeysError(f"its alg is {str(said)[:20]!r}, and for its type only {algorithm} is supported")
    return VerifyingKey(kid, algorithm, key)


def _imported(value: Any, kind: type[RSAKey | ECKey | OKPKey | OctKey] | None) -> Key:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)
            return kind.import_key(value) if kind else import_key(value)
    except SecurityWarning as error:  # its text is of the library alone
        if isinstance(value, dict) and value.get("kty") == "oct":
            raise KeysError(f"a secret has at least {SECRET_BYTES} bytes, and this one has fewer") from error
        raise KeysError(f"it is not safe: {error}") from error
    except Exception as error:  # what joserfc and cryptography raise for bad keys has no common base
        raise KeysError(f"it cannot be read ({type(error).__name__})") from error


def _checked(key: Key) -> Key:
    """Refuse weak keys, and those that would take long."""
    if isinstance(key, OctKey):
        size = len(key.raw_value)
        if size < SECRET_BYTES:
            raise KeysError(f"a secret has at least {SECRET_BYTES} bytes, not {size}")
    elif key.is_private:
        raise KeysError("it is a private key, and the gateway needs the public one: openssl pkey -pubout")
    elif isinstance(key, RSAKey):
        bits = key.public_key.key_size
        if bits not in _RSA_BITS:
            raise KeysError(f"an RSA key has {_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits, not {bits}")
    return key


def _algorithm(key: Key) -> str:
    match key:
        case OctKey():
            return "HS256"
        case RSAKey():
            return "RS256"
        case ECKey() if key.curve_name == "P-256":
            return "ES256"
        case OKPKey() if key.curve_name == "Ed25519":
            return "Ed25519"
        case _:
            raise KeysError("its curve is neither P-256 nor Ed25519")


def same(one: Iterable[VerifyingKey], other: Iterable[VerifyingKey]) -> bool:
    """Say whether two sets are of the same keys."""
    return [(each.kid, each.algorithm, each.key.as_dict()) for each in one] == [
        (each.kid, each.algorithm, each.key.as_dict()) for each in other
    ]


# JSON as it may stand in a JWT or in a set of keys: an object in UTF-8, each name once in it.


def read_object(raw: bytes) -> dict[str, Any]:
    """Read an object. Raises ValueError, which says what is wrong and quotes nothing."""
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_each_name_once, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - it is what was sent, not an argument of ours
    return found


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values under one name would be read as one by the signer, and as the other here."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a name twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Texts that were meant to be something else than a secret: a public key, a document, a URL, a token.
#
# Where an operator gives one in place of a secret, it would be one by its letters, and who knows it could sign. So
# a secret is looked at as it is, and as what is left without comments, quotes and encodings around it. Nothing here
# takes what is random for one of these: what has no form of its own (a passphrase, the number of a raw key) passes.

_LEAST: Final = 14
"""Bytes: shorter ones are no key, and the library refuses them for their length."""
_MOST_LAYERS: Final = 32
"""How many texts are looked at: each layer that is taken off may give several."""

_COMMENT: Final = re.compile(rb"^[ \t]*(#|//|;).*$", re.MULTILINE)
_SSH: Final = re.compile(rb"\0\0\0[\x07-\x40]((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+)")
_JWK: Final = re.compile(rb"""\bkty\b\\*["']?\s*[:=]""")
_MARKUP: Final = re.compile(rb"<(!doctype|html|\?xml)\b", re.IGNORECASE)
_ELEMENT: Final = re.compile(rb"<([a-z][\w:.-]*)(\s[^>]*)?>.*</\1\s*>", re.IGNORECASE | re.DOTALL)
_URL: Final = re.compile(rb"(\w+=)?[a-z][a-z0-9+.-]+://[\w.~:/?#\[\]@!$&'()*+,;=%-]+", re.IGNORECASE)
_PART: Final = re.compile(rb"[A-Za-z0-9_-]{14,}")
"""What may be a part of a token."""
_PASETO: Final = re.compile(rb"v[1-4]\.(public|local)\.[\w-]+(\.[\w-]+)?")
_API_KEY: Final = re.compile(rb"fp_[0-9a-z]{1,32}_[0-9a-zA-Z]{1,128}")


def looks_like(secret: bytes) -> str | None:
    """Name what a secret looks like that others may know; None: nothing of the kind."""
    for layer in _layers(secret):
        for form, has_it in _FORMS.items():
            if len(layer) >= _LEAST and has_it(layer):
                return form
    return None


def _layers(secret: bytes) -> Iterator[bytes]:
    """Give the secret, and what is inside of it: each layer is shorter than the one around it."""
    found = [secret]
    for number in range(_MOST_LAYERS):
        if number == len(found):
            return
        yield (layer := found[number])
        found += [each for each in dict.fromkeys(_unwrapped(layer)) if each not in found]


def _unwrapped(layer: bytes) -> Iterator[bytes]:
    text = layer.strip().removeprefix(codecs.BOM_UTF8).strip()
    yield text
    yield _COMMENT.sub(b"", text).strip()
    yield unquote_to_bytes(text)
    if text[:1] == text[-1:] and text[:1] in (b'"', b"'", b"`"):
        yield text[1:-1]
    packed = b"".join(text.split())
    with suppress(ValueError):
        yield _from_base64(packed)
    with suppress(ValueError):
        yield binascii.unhexlify(packed)


def _is_public_key(layer: bytes) -> bool:
    """Ask the library, which takes no public key and no certificate for a secret."""
    ssh = _SSH.match(layer)  # as it stands behind the name of its kind, in base64
    given = ssh[1] + b" " + binascii.b2a_base64(layer) if ssh else layer
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)
            OctKey.import_key(given)
    except (ValueError, SecurityWarning):
        return True
    return False


def _is_private_key(layer: bytes) -> bool:
    try:
        load_der_private_key(layer, None)
    except ValueError:
        return False
    except (TypeError, UnsupportedAlgorithm):  # it has a password, or is of a kind that the library does not know
        return True
    return True


def _is_page(layer: bytes) -> bool:
    return bool(_MARKUP.search(layer) or _ELEMENT.fullmatch(layer))


def _is_url(layer: bytes) -> bool:
    words = layer.split()
    return bool(words) and all(map(_URL.fullmatch, words))


def _is_token(layer: bytes) -> bool:
    return bool(_PASETO.fullmatch(layer) or _API_KEY.fullmatch(layer)) or any(map(_is_coded_json, _PART.findall(layer)))


def _is_coded_json(part: bytes) -> bool:
    """Whether a word is JSON as base64: the first part of a JWT is, and parts of tokens like it."""
    with suppress(ValueError):
        return _is_json(_from_base64(part))
    return False


def _is_json(layer: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(layer), dict | list)
    return False


def _from_base64(text: bytes) -> bytes:
    """Decode base64, that for URLs too, with padding or without. Raises ValueError."""
    plain = text.translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    return b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


_FORMS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "a key or certificate, which is taken as PEM, with nothing before it": _is_public_key,
    "a private key": _is_private_key,
    "a JWK or JWKS, which is taken as JSON, with nothing around it": _JWK.search,
    "a page of HTML or XML": _is_page,
    "a URL": _is_url,
    "a token, or JSON as base64": _is_token,
    "a JSON document": _is_json,
}
