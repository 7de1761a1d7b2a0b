"""How the source on Kubernetes finds its API server and says who it is; what it says when it may not."""

import asyncio
import copy
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.kube.apiserver import ADMIN, NAMESPACE, Cluster, cluster
from tests.kube.manifests import object_of, objects
from tests.support.interleave import eventually
from tests.support.servers import free_port

from fencepost.locks.kubernetes import access as kubernetes_access
from fencepost.locks.kubernetes import api as kubernetes_api
from fencepost.locks.kubernetes.api import VERBS
from fencepost.locks.kubernetes.source import KubernetesLeases, from_url
from fencepost.locks.registry import SourceContext
from fencepost.locks.source import Grant, Holder, SourceConfigError, SourceError, SourceUnavailableError

pytestmark = pytest.mark.long("tests of Kubernetes")

LOCK = "orders/order-123"
GATEWAY = {"token": "gateway-token"}
OURS = "fencepost"
"""The namespace of deploy/kubernetes."""


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("kube")) as running:
        running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}, *objects("rbac.yaml"))
        yield running


Make = Callable[[str], KubernetesLeases]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def one(url: str) -> KubernetesLeases:
            source = from_url(url, SourceContext("kube", ""))
            stack.push_async_callback(source.close)
            return source

        yield one


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
    """Use each verb; `lock` is held by somebody else."""
    await source.issued(1)
    await acquired(source, f"{lock}/mine")
    await acquired(source, lock, wait_s=1)


async def test_a_pod_with_the_role_of_the_manifests_can_do_everything(make: Make, pod: Path) -> None:
    assert await works(make(f"kubernetes://in-cluster?serviceaccount={pod}"), "a pod's")


async def test_a_pod_may_do_nothing_in_other_namespaces(make: Make, pod: Path) -> None:
    source = make(f"kubernetes://in-cluster/{NAMESPACE}?serviceaccount={pod}")
    with pytest.raises(SourceError, match=f"verb get on leases.coordination.k8s.io in namespace {NAMESPACE}"):
        await acquired(source)


async def test_a_service_accounts_token_that_was_renewed_on_disk_is_used(make: Make, kube: Cluster, pod: Path) -> None:
    good = (pod / "token").read_text()
    (pod / "token").write_text("expired")
    source = make(f"kubernetes://in-cluster?serviceaccount={pod}")
    with pytest.raises(SourceError, match="renew the credentials of the service account in"):
        await acquired(source)
    (pod / "token").write_text(f"{good}\n")
    assert isinstance(await acquired(source, "renewed"), Grant)
    assert kube.ask("GET", "/version").is_success


async def test_outside_of_a_pod_it_says_so(make: Make, tmp_path: Path) -> None:
    with pytest.raises(SourceConfigError, match="Service host/port is not set"):
        await acquired(make(f"kubernetes://in-cluster?serviceaccount={tmp_path}"))


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


async def test_doctor_names_the_verbs_that_are_missing(make: Make, kube: Cluster) -> None:
    await role_without(kube, "watch")
    source = make(f"kubernetes://kubeconfig?file={kube.kubeconfig('gateway', GATEWAY)}")
    (advice,) = await source.advice()
    assert advice.startswith(f"watch on leases.coordination.k8s.io in namespace {NAMESPACE} is not allowed")


async def test_a_namespace_that_is_not_there_is_named(make: Make, kube: Cluster) -> None:
    source = make(f"kubernetes://kubeconfig/nowhere?file={kube.kubeconfig('admin', {'token': ADMIN})}")
    with pytest.raises(SourceError, match='namespaces "nowhere" not found'):
        await acquired(source)


async def test_a_client_certificate(make: Make, kube: Cluster) -> None:
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kube.kubeconfig("certificate", files)
    with pytest.raises(SourceError, match='User "cert-user" cannot get resource "leases"'):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))


async def test_a_context_of_the_users_own_kubeconfig(
    make: Make, kube: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = kube.kubeconfig("contexts", {"token": ADMIN})
    said = json.loads(config.read_text())
    said["contexts"].append({"name": "elsewhere", "context": {"cluster": "test", "user": "me", "namespace": OURS}})
    config.write_text(json.dumps(said))
    monkeypatch.setenv("KUBECONFIG", str(config))
    source = make("kubernetes://kubeconfig?context=elsewhere")
    assert await works(source, "by a context")
    found = kube.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases").json()["items"]
    assert [one for one in found if one["metadata"]["annotations"]["fencepost/lock"] == "by a context"]


def plugin(directory: Path, tokens: list[str]) -> dict[str, Any]:
    """Make an exec plugin which gives these tokens one after the other."""
    script, state = directory / "plugin.py", directory / "given"
    state.write_text("0")
    script.write_text(
        "import json, pathlib, sys\n"
        f"state, tokens = pathlib.Path({str(state)!r}), {tokens!r}\n"
        "given = int(state.read_text())\n"
        "state.write_text(str(given + 1))\n"
        "token = tokens[min(given, len(tokens) - 1)]\n"
        "if token == 'fails': sys.exit('you are logged out')\n"
        "version, kind = 'client.authentication.k8s.io/v1', 'ExecCredential'\n"
        "print(json.dumps({'apiVersion': version, 'kind': kind, 'status': {'token': token}}))\n"
    )
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(script)]}
    return {"exec": {**run, "interactiveMode": "Never"}}


async def test_an_exec_plugin_is_run_again_when_its_token_is_refused(make: Make, kube: Cluster, tmp_path: Path) -> None:
    config = kube.kubeconfig("exec", plugin(tmp_path, ["expired", ADMIN]))
    source = make(f"kubernetes://kubeconfig?file={config}")
    assert await works(source, "by a plugin")
    assert (tmp_path / "given").read_text() == "2"


async def test_an_exec_plugin_that_fails_is_quoted(make: Make, kube: Cluster, tmp_path: Path) -> None:
    config = kube.kubeconfig("exec-fails", plugin(tmp_path, ["fails"]))
    with pytest.raises(SourceConfigError, match="you are logged out"):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))


async def test_the_name_in_the_servers_certificate_can_be_given(make: Make, kube: Cluster) -> None:
    config = kube.kubeconfig("sni", {"token": ADMIN})
    said = json.loads(config.read_text())
    said["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes.default"
    config.write_text(json.dumps(said))
    assert isinstance(await acquired(make(f"kubernetes://kubeconfig?file={config}"), "sni"), Grant)
    said["clusters"][0]["cluster"]["tls-server-name"] = "another"
    config.write_text(json.dumps(said))
    with pytest.raises(SourceUnavailableError, match="certificate"):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"), "sni")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be used"),
        ("", "cannot be used"),
        ("- a list", "cannot be used"),
        ("{broken: [", "cannot be used"),
        ('{"current-context": "x", "contexts": []}', "cannot be used"),
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
    make: Make, tmp_path: Path, content: str | None, told: str
) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    with pytest.raises(SourceConfigError, match=told) as error:
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))
    assert str(config) in str(error.value)
    assert "s3cret" not in str(error.value)
    assert error.value.__cause__ is None, "a traceback would quote it"


async def test_an_address_where_nobody_listens(make: Make, kube: Cluster) -> None:
    config = kube.kubeconfig("nobody", {"token": "s3cret"})
    port = free_port()
    config.write_text(config.read_text().replace(f":{kube.port}", f":{port}"))
    with pytest.raises(SourceUnavailableError, match=f"https://127.0.0.1:{port} cannot be asked") as error:
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
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
    make: Make, tmp_path: Path, status: str, body: str, error: type[SourceError], told: str
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
        said = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": users}
        config.write_text(json.dumps(said))
        with pytest.raises(SourceError, match=told) as raised:
            await acquired(make(f"kubernetes://kubeconfig?file={config}"))
        assert type(raised.value) is error
        assert f"http://127.0.0.1:{port}" in str(raised.value)
        assert "s3cret" not in str(raised.value)


async def test_a_request_that_is_cancelled_in_its_tls_handshake_leaves_no_connection(
    make: Make, kube: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_access, "REQUEST_TIMEOUT", 0.3)
    greeted, gone = asyncio.Event(), asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        greeted.set()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as server:
        config = kube.kubeconfig("silent", {"token": ADMIN})
        port = server.sockets[0].getsockname()[1]
        config.write_text(config.read_text().replace(f":{kube.port}", f":{port}"))
        asking = asyncio.create_task(acquired(make(f"kubernetes://kubeconfig?file={config}")))
        await greeted.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(5):
            await gone.wait()


async def test_an_exec_plugin_that_hangs_holds_up_nobody_for_good(
    make: Make, kube: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "REQUEST_TIMEOUT", 0.5)
    hangs = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(tmp_path / "pipe")]}
    os.mkfifo(tmp_path / "pipe")
    source = make(f"kubernetes://kubeconfig?file={kube.kubeconfig('hangs', {'exec': hangs})}")
    with pytest.raises(SourceUnavailableError, match="has not answered within"):
        await acquired(source)
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": ADMIN}}
    (tmp_path / "pipe").write_text(json.dumps(said))

    async def done() -> bool:
        try:
            return isinstance(await acquired(source, "after a while"), Grant)
        except SourceUnavailableError:
            return False

    await eventually(done, what="the plugin's token")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kubernetes://", "something else than in-cluster or kubeconfig"),
        ("kubernetes://10.0.0.1:6443/locks", "something else than in-cluster or kubeconfig"),
        ("kubernetes://me:s3cret@in-cluster/locks", "something else than in-cluster or kubeconfig"),
        ("kubernetes://in-cluster/a/b", "the path '/a/b'"),
        ("kubernetes://in-cluster/UPPER", "the path '/UPPER'"),
        ("kubernetes://in-cluster?context=x", "context, which is for kubernetes://kubeconfig only"),
        ("kubernetes://kubeconfig?serviceaccount=/x", "serviceaccount, which is for kubernetes://in-cluster only"),
        ("kubernetes://kubeconfig?names=other", "names=other: it is one of hashed, own"),
        ("kubernetes://kubeconfig?file=", "file without a value"),
        ("kubernetes://kubeconfig?file=a&file=b", "file twice"),
        ("kubernetes://kubeconfig?file", "not name=value"),
        ("kubernetes://kubeconfig#x", "has a #"),
    ],
)
def test_a_url_that_says_something_else_is_refused(url: str, told: str) -> None:
    with pytest.raises(SourceConfigError, match=told) as error:
        from_url(url, SourceContext("kube", ""))
    assert str(error.value).startswith("the URL of source kube ")
    assert "s3cret" not in str(error.value)
