"""Tokens for tests: good ones, and such as an attacker would make."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any, Final

from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

SECRET: Final = "a secret of tests, which has thirty-two bytes and more"
RSA: Final = RSAKey.generate_key(2048, {"kid": "rsa-1"})
EC: Final = ECKey.generate_key("P-256", {"kid": "ec-1"})
ED: Final = OKPKey.generate_key("Ed25519", {"kid": "ed-1"})
OCT: Final = OctKey.import_key(SECRET)


def claims(**changes: Any) -> dict[str, Any]:
    """Give claims of a token that is accepted for a day; None takes one out.

    A day, because a test may run an hour after its module was imported.
    """
    now = int(time.time())  # noqa: TID251 - exp is a time of the world's clock
    found = {"iss": "https://id.example", "sub": "worker-a", "role": "web", "iat": now, "exp": now + 86_400} | changes
    return {name: value for name, value in found.items() if value is not None}


def sign(payload: dict[str, Any] | bytes, key: Key = OCT, alg: str = "HS256", **header: Any) -> str:
    """Sign a payload with a key, under a header as it is given."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact({"alg": alg, **header}, raw, key, registry=registry)


def token(**changes: Any) -> str:
    """Give a token under SECRET, with claims that are accepted but for these."""
    return sign(claims(**changes))


def bearer(credential: str) -> dict[str, str]:
    """Give the header that presents a token or a key."""
    return {"Authorization": f"Bearer {credential}"}


def encode(part: bytes | dict[str, Any]) -> str:
    """Encode a part of a token."""
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(header: bytes | dict[str, Any], payload: bytes | dict[str, Any], signature: bytes = b"") -> str:
    """Put a token together that nobody has signed."""
    return f"{encode(header)}.{encode(payload)}.{encode(signature)}"


def hs256(header: bytes | dict[str, Any], payload: bytes | dict[str, Any]) -> str:
    """Give a token whose signature is good under SECRET, whatever its header says."""
    signed = f"{encode(header)}.{encode(payload)}"
    return f"{signed}.{encode(hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest())}"


def public(*keys: Key, **changes: Any) -> dict[str, Any]:
    """Give the JWKS with these keys."""
    return {"keys": [{**key.as_dict(private=False), **changes} for key in keys]}
