"""How the source kubernetes gets to its API server: pods, kubeconfig, and failures."""

import asyncio
import copy
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.kube.manifests import object_of, objects

from fencepost.server.locks.kubernetes import KubernetesLeases, from_url
from fencepost.server.locks.kubernetes_api import VERBS
from fencepost.server.locks.source import (
    Grant,
    Holder,
    SourceConfigError,
    SourceContext,
    SourceError,
    SourceUnavailableError,
)
from fencepost.testing.servers.kubernetes import ADMIN, NAMESPACE, Cluster
from fencepost.testing.servers.processes import eventually

# All that a gateway does with a source on Kubernetes.


LOCK = "orders/order-123"
GATEWAY = {"token": "gateway-token"}
OURS = "fencepost"
"""The namespace of deploy/kubernetes."""


Make = Callable[[str], KubernetesLeases]


async def acquired(source: KubernetesLeases, lock: str = LOCK, wait_s: float = 0) -> Grant | Holder:
    return await source.acquire(lock, owner="somebody", ttl_ms=30_000, tokens=2, wait_s=wait_s)


async def works(source: KubernetesLeases, lock: str) -> bool:
    """Do all that a gateway does."""
    grant = await acquired(source, lock)
    assert isinstance(grant, Grant)
    assert isinstance(await acquired(source, lock, wait_s=0.5), Holder)
    assert await source.renew(lock, grant.handle, 30_000)
    assert await source.mint(lock, grant.handle, 1)
    assert await source.issued(grant.tokens[0])
    await source.release(lock, grant.handle)
    return await source.inspect(lock) is None and await source.advice() == []


# A real kube-apiserver with the manifests of deploy/kubernetes, and sources on it.


@pytest.fixture(scope="module")
def kube(apiserver: Cluster) -> Cluster:
    apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}, *objects("rbac.yaml"))
    return apiserver


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def one(url: str) -> KubernetesLeases:
            source = from_url(url, SourceContext("kube", ""))
            stack.push_async_callback(source.close)
            return source

        yield one


# In a pod: the service account, its Role, and each verb of it.


def account_token(kube: Cluster, seconds: int = 600) -> str:
    asked = {"spec": {"expirationSeconds": seconds}}
    answer = kube.ask("POST", f"/api/v1/namespaces/{OURS}/serviceaccounts/fencepost/token", asked)
    assert answer.is_success, answer.text
    return str(answer.json()["status"]["token"])


@pytest.fixture
def pod(kube: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give what Kubernetes puts into a pod of the gateway: a folder and two variables."""
    shutil.copy(kube.directory / "ca.crt", tmp_path / "ca.crt")
    (tmp_path / "namespace").write_text(OURS)
    (tmp_path / "token").write_text(account_token(kube))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube.port))
    return tmp_path


async def role_without(kube: Cluster, verb: str) -> None:
    """Give user `gateway` the Role of deploy/kubernetes in NAMESPACE, without one verb; return when it is in force."""
    role = copy.deepcopy(object_of("rbac.yaml", "Role"))
    role["metadata"] = {"name": "less", "namespace": NAMESPACE}
    role["rules"][0]["verbs"].remove(verb)
    subject = {"kind": "User", "name": "gateway", "apiGroup": "rbac.authorization.k8s.io"}
    binding = copy.deepcopy(object_of("rbac.yaml", "RoleBinding"))
    binding |= {"metadata": role["metadata"], "subjects": [subject]}
    binding["roleRef"]["name"] = "less"
    kube.apply(role, binding)

    async def in_force() -> bool:
        return [one for one in VERBS if not may(kube, one)] == [verb]

    await eventually(in_force, what=f"the role without {verb}")


def may(kube: Cluster, verb: str) -> bool:
    wanted = {"namespace": NAMESPACE, "group": "coordination.k8s.io", "resource": "leases", "verb": verb}
    review = {"kind": "SubjectAccessReview", "spec": {"user": "gateway", "resourceAttributes": wanted}}
    answer = kube.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.json()["status"]["allowed"])


async def do_all(source: KubernetesLeases, lock: str) -> None:
    """Use each verb; `lock` is held by another client."""
    await source.issued(1)
    await acquired(source, f"{lock}/mine")
    await acquired(source, lock, wait_s=1)


@pytest.mark.long("tests of Kubernetes")
async def test_a_pod_with_the_role_of_the_manifests_can_do_everything(make: Make, pod: Path) -> None:
    assert await works(make(f"kubernetes://in-cluster?serviceaccount={pod}"), "a pod's")


@pytest.mark.long("tests of Kubernetes")
async def test_a_service_accounts_token_that_was_renewed_on_disk_is_used(make: Make, kube: Cluster, pod: Path) -> None:
    good = (pod / "token").read_text()
    (pod / "token").write_text("expired")
    source = make(f"kubernetes://in-cluster?serviceaccount={pod}")
    with pytest.raises(SourceError, match="renew the credentials of the service account in"):
        await acquired(source)
    (pod / "token").write_text(f"{good}\n")
    assert isinstance(await acquired(source, "renewed"), Grant)
    assert kube.ask("GET", "/version").is_success


@pytest.mark.long("tests of Kubernetes")
@pytest.mark.parametrize("verb", VERBS)
async def test_each_verb_of_the_role_is_needed_and_named_when_it_is_missing(
    make: Make, kube: Cluster, verb: str
) -> None:
    await role_without(kube, verb)
    source = make(f"kubernetes://kubeconfig?file={kube.kubeconfig('gateway', GATEWAY)}")
    admin = make(f"kubernetes://kubeconfig?file={kube.kubeconfig('admin', {'token': ADMIN})}")
    await acquired(admin, f"without/{verb}")
    with pytest.raises(SourceError, match=f"the verb {verb} on leases.coordination.k8s.io in namespace") as error:
        await do_all(source, f"without/{verb}")
    assert not isinstance(error.value, SourceUnavailableError)
    assert "gateway" in str(error.value), "who lacks it"
    if verb == "list":  # without that doctor cannot look at all
        with pytest.raises(SourceError, match="the verb list on leases"):
            await source.advice()
    else:
        (advice,) = await source.advice()
        assert advice.startswith(f"{verb} on leases.coordination.k8s.io in namespace {NAMESPACE} is not allowed")


# Outside of pods: kubeconfigs, certificates, exec plugins, wrong URLs.


@pytest.mark.long("tests of Kubernetes")
async def test_a_client_certificate(make: Make, kube: Cluster) -> None:
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kube.kubeconfig("certificate", files)
    with pytest.raises(SourceError, match='User "cert-user" cannot get resource "leases"'):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))


@pytest.mark.long("tests of Kubernetes")
@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (None, "cannot be used"),
        ("- a list", "cannot be used"),
        (
            '{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],'
            '"clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],'
            '"users": [{"name": "u", "users": {"token": "s3cret"}}]}',
            "cannot be used",
        ),
        ("users:\n- token: s3cret: s3cret\n", "cannot be used"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_read_is_named_and_not_quoted(
    make: Make, tmp_path: Path, content: str | None, reported: str
) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    with pytest.raises(SourceConfigError, match=reported) as error:
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))
    assert str(config) in str(error.value)
    assert "s3cret" not in str(error.value)
    assert error.value.__cause__ is None, "a traceback would quote it"


# API servers that do not answer, answer with errors, or are left in the TLS handshake.


@pytest.mark.long("tests of Kubernetes")
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
