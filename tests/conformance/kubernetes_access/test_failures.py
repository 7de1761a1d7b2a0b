"""API servers that do not answer, answer with errors, or are left in the TLS handshake."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.conformance.kubernetes_access.using import Make, acquired

from fencepost.server.locks.source import SourceError, SourceUnavailableError

pytestmark = pytest.mark.long("tests of Kubernetes")


@pytest.mark.parametrize(
    ("status", "body", "error", "reported"),
    [
        ("200 OK", "<html>", SourceError, "no Kubernetes API server"),
        ("200 OK", "{}", SourceError, "with no Lease"),
        ("401 Unauthorized", "", SourceError, "renew the credentials of the kubeconfig"),
        ("429 Too Many Requests", "", SourceUnavailableError, "answered 429: Too Many Requests"),
        ("nonsense", "", SourceUnavailableError, "cannot be asked"),
    ],
)
async def test_each_answer_of_a_server_has_its_error(
    make: Make, tmp_path: Path, status: str, body: str, error: type[SourceError], reported: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        config = tmp_path / "config"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": "s3cret"}}]
        output = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": users}
        config.write_text(json.dumps(output))
        with pytest.raises(SourceError, match=reported) as raised:
            await acquired(make(f"kubernetes://kubeconfig?file={config}"))
        assert type(raised.value) is error
        assert f"http://127.0.0.1:{port}" in str(raised.value)
        assert "s3cret" not in str(raised.value)
