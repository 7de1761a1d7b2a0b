"""API servers that do not answer, answer with errors, or are left in the TLS handshake."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.conformance.kubernetes_access.using import Make, acquired

from fencepost.locks.kubernetes import access as kubernetes_access
from fencepost.locks.source import SourceError, SourceUnavailableError
from fencepost.testing.servers.kubernetes import ADMIN, Cluster
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.waiting import PATIENCE

pytestmark = pytest.mark.long("tests of Kubernetes")


async def test_an_address_without_a_listener(make: Make, kube: Cluster) -> None:
    config = kube.kubeconfig("nobody", {"token": "s3cret"})
    port = free_port()
    config.write_text(config.read_text().replace(f":{kube.port}", f":{port}"))
    with pytest.raises(SourceUnavailableError, match=f"https://127.0.0.1:{port} cannot be asked") as error:
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "body", "error", "reported"),
    [
        ("200 OK", "<html>", SourceError, "no Kubernetes API server"),
        ("200 OK", "{}", SourceError, "with no Lease"),
        ("200 OK", "[]", SourceError, "no Kubernetes API server"),
        ("302 Found", "", SourceError, "refused with 302"),
        ("400 Bad Request", '{"message": "so bad"}', SourceError, "refused with 400: so bad"),
        ("401 Unauthorized", "", SourceError, "renew the credentials of the kubeconfig"),
        ("429 Too Many Requests", "", SourceUnavailableError, "answered 429: Too Many Requests"),
        ("500 Internal Server Error", "", SourceUnavailableError, "answered 500"),
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


async def test_a_request_that_is_cancelled_in_its_tls_handshake_leaves_no_connection(
    make: Make, kube: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_access, "REQUEST_TIMEOUT", 0.3)
    greeted, gone = asyncio.Event(), asyncio.Event()

    async def answers_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(answers_nothing, "127.0.0.1", 0) as server:
        config = kube.kubeconfig("silent", {"token": ADMIN})
        port = server.sockets[0].getsockname()[1]
        config.write_text(config.read_text().replace(f":{kube.port}", f":{port}"))
        asking = asyncio.create_task(acquired(make(f"kubernetes://kubeconfig?file={config}")))
        await greeted.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(PATIENCE):
            await gone.wait()
