"""Texts that were meant to be something else than a secret: a public key, a document, a URL, a token.

Where an operator gives one in place of a secret, it would be one by its letters, and who knows it could sign. So
a secret is looked at as it is, and as what is left without comments, quotes and encodings around it. Nothing here
takes what is random for one of these: what has no form of its own (a passphrase, the number of a raw key) passes.
"""

import binascii
import codecs
import json
import re
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key
from joserfc.errors import SecurityWarning
from joserfc.jwk import OctKey

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
