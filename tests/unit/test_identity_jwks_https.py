"""A JWKS by https: whom the gateway believes."""

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.asking import RSA, public
from tests.support.servers import jwks_server, self_signed

from fencepost.server.identity import jwt
from fencepost.server.identity.jwt import FromUrl
from fencepost.server.identity.keys import KeysError


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
