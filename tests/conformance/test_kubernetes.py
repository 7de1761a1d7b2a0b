"""The source kubernetes: holds, Leases as an operator sees them, waiting, lost answers, and ways to the API server."""

import asyncio
import copy
import importlib
import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import until

from fencepost.server.locks import kubernetes_api
from fencepost.server.locks.kubernetes import KubernetesLeases, from_url
from fencepost.server.locks.kubernetes_api import VERBS, KubernetesApi, LeaseObject, hashed_name, own_name
from fencepost.server.locks.source import (
    Grant,
    Holder,
    SourceConfigError,
    SourceContext,
    SourceError,
    SourceUnavailableError,
)
from fencepost.testing.servers.kubernetes import ADMIN, NAMESPACE, Cluster
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests of Kubernetes")

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
_yaml: Any = importlib.import_module("yaml")  # it has no hints


def objects(file: str) -> list[dict[str, Any]]:
    return list(_yaml.safe_load_all((FOLDER / file).read_text()))


def object_of(file: str, kind: str) -> dict[str, Any]:
    (found,) = (one for one in objects(file) if one["kind"] == kind)
    return found


# Leases as an operator reads and changes them, and a source on them.

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


LOCK = "orders/order-123"
Make = Callable[..., KubernetesLeases]
MakeByUrl = Callable[[str], KubernetesLeases]


class Leases:
    """What an operator sees and does."""

    def __init__(self, kube: Cluster, url: str) -> None:
        self._kube = kube
        self._path = LEASES.replace(NAMESPACE, url.partition("?")[0].rpartition("/")[2])

    def get(self, lock: str, name: str | None = None) -> dict[str, Any]:
        answer = self._kube.ask("GET", f"{self._path}/{name or hashed_name(lock)}")
        return answer.json() if answer.is_success else {}

    def put(self, lease: dict[str, Any]) -> dict[str, Any]:
        answer = self._kube.ask("PUT", f"{self._path}/{lease['metadata']['name']}", lease)
        assert answer.is_success, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def post(self, lease: dict[str, Any]) -> dict[str, Any]:
        answer = self._kube.ask("POST", self._path, lease)
        assert answer.is_success, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def delete(self, lock: str) -> None:
        assert self._kube.ask("DELETE", f"{self._path}/{hashed_name(lock)}").is_success


async def granted(source: KubernetesLeases, lock: str = LOCK, *, ttl_ms: int = 1000, **how: Any) -> Grant:
    wanted = {"owner": "somebody", "tokens": 1, "wait_s": 0.0, **how}
    grant = await source.acquire(lock, ttl_ms=ttl_ms, **wanted)
    assert isinstance(grant, Grant), grant
    return grant


def elected(name: str, identity: str, seconds: int = 1) -> dict[str, Any]:
    """Write a Lease as client-go's leader election does."""
    spec = {"holderIdentity": identity, "leaseDurationSeconds": seconds, "leaseTransitions": 3}
    return {"kind": "Lease", "metadata": {"name": name, "labels": {"their": "own"}}, "spec": spec}


def api_of(source: KubernetesLeases) -> KubernetesApi:
    return source._api  # noqa: SLF001 - to break the line at one place


# A namespace of a real kube-apiserver for each test, and sources on it.


@pytest.fixture
def kube(apiserver: Cluster) -> Cluster:
    return apiserver


@pytest.fixture
def url(kube: Cluster) -> str:
    """Of a namespace of the test's own."""
    made = kube.ask("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"generateName": "test-"}})
    return (
        f"kubernetes://kubeconfig/{made.json()['metadata']['name']}?file={kube.kubeconfig('admin', {'token': ADMIN})}"
    )


@pytest.fixture
def make_by_url(stack: AsyncExitStack) -> MakeByUrl:
    def one(url: str) -> KubernetesLeases:
        source = from_url(url, SourceContext("kube", ""))
        stack.push_async_callback(source.close)
        return source

    return one


@pytest.fixture
def make(url: str, make_by_url: MakeByUrl) -> Make:
    """Give a function that makes a source, as another worker would."""
    return lambda options="": make_by_url(url + options)


@pytest.fixture
def leases(kube: Cluster, url: str) -> Leases:
    return Leases(kube, url)


# Leases that an operator deletes, expired locks that are taken again, and what a token is.


async def test_a_lease_that_an_operator_deletes_is_lost_and_not_made_by_its_holder(make: Make, leases: Leases) -> None:
    source = make()
    grant = await granted(source, tokens=5, ttl_ms=30_000)
    leases.delete(LOCK)
    # It has seen the Lease, and asks for the update straight away: the API server creates what a PUT does not find.
    assert await source.mint(LOCK, grant.handle, 1) is None
    assert leases.get(LOCK) == {}
    assert await source.renew(LOCK, grant.handle, 30_000) is False
    await source.release(LOCK, grant.handle)
    assert leases.get(LOCK) == {}
    after = await granted(make(), tokens=2)
    assert after.tokens[0] > grant.tokens[-1]
    assert await source.mint(LOCK, grant.handle, 1) is None


async def test_who_takes_his_own_expired_lock_again_gets_a_newer_token_under_a_new_identity(
    make: Make, leases: Leases
) -> None:
    source = make()
    first = await granted(source, owner="one and the same")
    second = await granted(source, owner="one and the same", wait_s=20)
    assert second.tokens[0] > first.tokens[0]
    assert second.handle != first.handle
    assert leases.get(LOCK)["spec"]["leaseTransitions"] == 1
    assert await source.mint(LOCK, first.handle, 1) is None


async def test_a_clock_that_stands_still_draws_new_numbers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that changes nothing is no write: two mints in one microsecond would be one number."""
    monkeypatch.setattr(kubernetes_api, "wall_clock", lambda: "2026-01-02T03:04:05.000006Z")
    source = make()
    grant = await granted(source, tokens=3)
    minted = await source.mint(LOCK, grant.handle, 3)
    assert minted is not None
    drawn = [*grant.tokens, *minted]
    assert drawn == sorted(set(drawn))


async def test_a_token_is_the_resource_version_that_its_own_update_drew(make: Make, leases: Leases) -> None:
    source = make()
    for count in (1, 3):
        grant = await granted(source, tokens=count, ttl_ms=30_000)
        assert str(grant.tokens[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"], count
        minted = await source.mint(LOCK, grant.handle, count)
        assert minted is not None, count
        assert str(minted[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"], count
        await source.release(LOCK, grant.handle)


@pytest.mark.parametrize("time", ["2999-01-01T00:00:00.000000Z", None])
async def test_times_in_a_lease_decide_nothing(make: Make, leases: Leases, time: str | None) -> None:
    source = make()
    grant = await granted(source, ttl_ms=2000)
    lease = leases.get(LOCK)
    lease["spec"] |= {"renewTime": time, "acquireTime": time}
    leases.put(lease)
    other = make()
    held = await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.expires_ms is not None
    assert 1000 < held.expires_ms <= 2000, "it has yet to be seen unchanged for its whole length"
    assert (await granted(other, wait_s=20)).tokens[0] > grant.tokens[0]


# Names and contents of Leases, shared with client-go; what doctor reports; the manifests.


async def test_a_lock_that_a_lease_can_be_named_after_is_shared_with_client_go(make: Make, leases: Leases) -> None:
    source = make("&names=own")
    lease = leases.post(elected("the-leader", "pod-1_0b1c2d", seconds=600))
    held = await source.acquire("the-leader", owner="we", ttl_ms=1000, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.owner == "pod-1_0b1c2d"
    assert held.expires_ms is not None
    assert 590_000 < held.expires_ms <= 600_000
    lease["spec"]["holderIdentity"] = ""  # its ReleaseOnCancel
    leases.put(lease)
    grant = await granted(source, "the-leader")
    found = leases.get("", "the-leader")
    assert found["spec"]["holderIdentity"] == grant.handle
    assert found["spec"]["leaseTransitions"] == 4
    assert found["metadata"]["labels"] == {"their": "own"}
    assert str(grant.tokens[0]) == found["metadata"]["resourceVersion"]
    # client-go sees ours for its duration unchanged, and takes it.
    found["spec"]["holderIdentity"] = "pod-2_0b1c2d"
    leases.put(found)
    assert await source.mint("the-leader", grant.handle, 1) is None
    await source.release("the-leader", grant.handle)
    assert leases.get("", "the-leader")["spec"]["holderIdentity"] == "pod-2_0b1c2d"


async def test_two_locks_never_share_a_lease_by_accident(make: Make) -> None:
    source = make("&names=own")
    other = hashed_name("orders/1")
    await granted(source, "orders/1", ttl_ms=3_600_000)
    with pytest.raises(SourceError, match=f"lock {other}: .* is one of lock orders/1"):
        await granted(source, other)


def test_each_lock_has_a_lease_name_that_kubernetes_takes() -> None:
    names = ("a", "A", "orders/1", "orders//1", "..", "*", "ünï", "x" * 512, "-", "a.b-c", "1", " ", "x" * 253)
    assert len({hashed_name(name) for name in names}) == len(names)
    for name in names:
        assert own_name(hashed_name(name)) is not None, name
    assert [name for name in names if own_name(name)] == ["a", "a.b-c", "1", "x" * 253]


async def test_what_newer_versions_put_into_a_lease_stays_there(make: Make, leases: Leases) -> None:
    source = make()
    grant = await granted(source, ttl_ms=30_000)
    lease = leases.get(LOCK)
    lease["metadata"]["annotations"]["somebody/elses"] = "kept"
    leases.put(lease)
    assert await source.renew(LOCK, grant.handle, 30_000) is True
    await source.release(LOCK, grant.handle)
    assert leases.get(LOCK)["metadata"]["annotations"] == {"fencepost/lock": LOCK, "somebody/elses": "kept"}
    assert "fencepost" in {one["manager"] for one in leases.get(LOCK)["metadata"]["managedFields"]}


async def test_doctor_names_an_old_version_and_a_high_counter(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()
    assert await source.advice() == []

    async def old() -> dict[str, Any]:
        return {"major": "1", "minor": "29+", "gitVersion": "v1.29.4-eks-036c24b"}

    async def high() -> int:
        return 2**47 + 1

    monkeypatch.setattr(api_of(source), "version", old)
    monkeypatch.setattr(api_of(source), "counter", high)
    version, counter = await source.advice()
    assert version.startswith("Kubernetes v1.29.4-eks-036c24b does not promise")
    assert counter.startswith("the cluster's resourceVersion is 140737488355329")


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_the_api_server_takes_the_manifests_to_the_last_field(kube: Cluster, file: str) -> None:
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fencepost"}})
    for one in objects(file):
        group, kind = one["apiVersion"], one["kind"].lower()
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        plural = f"{kind}s"
        path = f"{root}/namespaces/fencepost/{plural}?dryRun=All&fieldValidation=Strict"
        answer = kube.ask("POST", path, one)
        assert answer.is_success, answer.text
        assert "Warning" not in answer.headers, answer.headers["Warning"]


# Answers of the API server that are lost, requests that are sent twice or cancelled.

Real = Callable[[dict[str, Any]], Awaitable[LeaseObject | None]]


@pytest.mark.parametrize("what", ["create", "update"])
@pytest.mark.parametrize("twice", [False, True], ids=["its answer is lost", "it is sent twice on its way"])
async def test_a_grant_is_found_though(make: Make, monkeypatch: pytest.MonkeyPatch, what: str, twice: bool) -> None:
    source = make()
    if what == "update":
        await source.release(LOCK, (await granted(source)).handle)
    real: Real = getattr(api_of(source), what)

    async def harmed(lease: dict[str, Any]) -> LeaseObject | None:
        await real(lease)
        if twice:
            return await real(lease)
        raise SourceUnavailableError("the connection broke")

    monkeypatch.setattr(api_of(source), what, harmed)
    grant = await granted(source, ttl_ms=30_000)
    monkeypatch.undo()
    assert await source.renew(LOCK, grant.handle, 30_000) is True
    assert await make().mint(LOCK, grant.handle, 1) is not None


@pytest.mark.parametrize("landed", [True, False], ids=["after it landed", "before it landed"])
async def test_an_acquire_that_is_cancelled_while_it_writes_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    source, other = make(), make()
    writing, go_on = asyncio.Event(), asyncio.Event()
    real = api_of(source).create

    async def slow(lease: dict[str, Any]) -> LeaseObject | None:
        made = await real(lease) if landed else None
        writing.set()
        await go_on.wait()
        return made if landed else await real(lease)

    monkeypatch.setattr(api_of(source), "create", slow)
    acquiring = asyncio.create_task(granted(source, ttl_ms=3_600_000))
    await writing.wait()
    acquiring.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    assert await other.inspect(LOCK) is None


async def test_an_acquire_that_fails_while_it_mints_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()

    async def fails(lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        raise SourceUnavailableError(f"{lock} {handle} {count}")

    monkeypatch.setattr(source, "mint", fails)
    with pytest.raises(SourceUnavailableError):
        await granted(source, tokens=5, ttl_ms=3_600_000)
    assert await make().inspect(LOCK) is None


async def test_a_number_that_has_no_room_in_a_token_is_refused_and_nothing_is_held(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of clusters that do not keep their state in etcd."""
    monkeypatch.setattr(kubernetes_api, "MOST_NATIVE", 0)
    with pytest.raises(SourceError, match="cannot be a source of tokens"):
        await granted(make(), ttl_ms=3_600_000)
    monkeypatch.undo()
    assert await make().inspect(LOCK) is None


# Who gets an expired or released Lease.


async def test_those_who_only_ask_now_and_then_get_an_expired_lock_too(make: Make) -> None:
    await granted(make())
    other = make()

    async def asks() -> bool:
        return isinstance(await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0), Grant)

    assert not await asks()
    await eventually(asks, what="the lock of a holder that does not renew")


@pytest.mark.realtime
async def test_a_mint_keeps_waiters_away_as_a_renewal_does(make: Make) -> None:
    source = make()
    grant = await granted(source)
    waiter = asyncio.create_task(make().acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=2.5))
    while not waiter.done():
        assert await source.mint(LOCK, grant.handle, 1) is not None
        await asyncio.wait([waiter], timeout=0.25)
    assert isinstance(await waiter, Holder)


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_waiter_sees_a_release_and_a_deletion_at_once(make: Make, leases: Leases, deleted: bool) -> None:
    source = make()
    grant = await granted(source, ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=600))
    await asyncio.wait([waiter], timeout=0.5)
    if deleted:
        leases.delete(LOCK)
    else:
        await source.release(LOCK, grant.handle)
    async with asyncio.timeout(PATIENCE):
        await waiter


# How the source kubernetes gets to its API server: pods, kubeconfig, and failures.

OURS = "fencepost"
"""The namespace of deploy/kubernetes."""


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
def kube_with_roles(apiserver: Cluster) -> Cluster:
    apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}, *objects("rbac.yaml"))
    return apiserver


# In a pod: the service account, its Role, and each verb of it.


def account_token(kube: Cluster, seconds: int = 600) -> str:
    asked = {"spec": {"expirationSeconds": seconds}}
    answer = kube.ask("POST", f"/api/v1/namespaces/{OURS}/serviceaccounts/fencepost/token", asked)
    assert answer.is_success, answer.text
    return str(answer.json()["status"]["token"])


@pytest.fixture
def pod(kube_with_roles: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give what Kubernetes puts into a pod of the gateway: a folder and two variables."""
    shutil.copy(kube_with_roles.directory / "ca.crt", tmp_path / "ca.crt")
    (tmp_path / "namespace").write_text(OURS)
    (tmp_path / "token").write_text(account_token(kube_with_roles))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube_with_roles.port))
    return tmp_path


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


async def test_a_pod_with_the_role_of_the_manifests_can_do_everything(make_by_url: MakeByUrl, pod: Path) -> None:
    assert await works(make_by_url(f"kubernetes://in-cluster?serviceaccount={pod}"), "a pod's")


async def test_a_service_accounts_token_that_was_renewed_on_disk_is_used(
    make_by_url: MakeByUrl, kube_with_roles: Cluster, pod: Path
) -> None:
    good = (pod / "token").read_text()
    (pod / "token").write_text("expired")
    source = make_by_url(f"kubernetes://in-cluster?serviceaccount={pod}")
    with pytest.raises(SourceError, match="renew the credentials of the service account in"):
        await acquired(source)
    (pod / "token").write_text(f"{good}\n")
    assert isinstance(await acquired(source, "renewed"), Grant)
    assert kube_with_roles.ask("GET", "/version").is_success


@pytest.mark.parametrize("verb", VERBS)
async def test_each_verb_of_the_role_is_needed_and_named_when_it_is_missing(
    make_by_url: MakeByUrl, kube_with_roles: Cluster, verb: str
) -> None:
    # Give user `gateway` the Role of deploy/kubernetes in NAMESPACE, without one verb; return when it is in
    # force.
    role = copy.deepcopy(object_of("rbac.yaml", "Role"))
    role["metadata"] = {"name": "less", "namespace": NAMESPACE}
    role["rules"][0]["verbs"].remove(verb)
    subject = {"kind": "User", "name": "gateway", "apiGroup": "rbac.authorization.k8s.io"}
    binding = copy.deepcopy(object_of("rbac.yaml", "RoleBinding"))
    binding |= {"metadata": role["metadata"], "subjects": [subject]}
    binding["roleRef"]["name"] = "less"
    kube_with_roles.apply(role, binding)
    await until(
        lambda: [one for one in VERBS if not may(kube_with_roles, one)] == [verb], what=f"the role without {verb}"
    )
    gateway = {"token": "gateway-token"}
    source = make_by_url(f"kubernetes://kubeconfig?file={kube_with_roles.kubeconfig('gateway', gateway)}")
    admin = make_by_url(f"kubernetes://kubeconfig?file={kube_with_roles.kubeconfig('admin', {'token': ADMIN})}")
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


async def test_a_client_certificate(make_by_url: MakeByUrl, kube_with_roles: Cluster) -> None:
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kube_with_roles.kubeconfig("certificate", files)
    with pytest.raises(SourceError, match='User "cert-user" cannot get resource "leases"'):
        await acquired(make_by_url(f"kubernetes://kubeconfig?file={config}"))


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
    make_by_url: MakeByUrl, tmp_path: Path, content: str | None, reported: str
) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    with pytest.raises(SourceConfigError, match=reported) as error:
        await acquired(make_by_url(f"kubernetes://kubeconfig?file={config}"))
    assert str(config) in str(error.value)
    assert "s3cret" not in str(error.value)
    assert error.value.__cause__ is None, "a traceback would quote it"


# API servers that do not answer, answer with errors, or are left in the TLS handshake.


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
    make_by_url: MakeByUrl, tmp_path: Path, status: str, body: str, error: type[SourceError], reported: str
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
            await acquired(make_by_url(f"kubernetes://kubeconfig?file={config}"))
        assert type(raised.value) is error
        assert f"http://127.0.0.1:{port}" in str(raised.value)
        assert "s3cret" not in str(raised.value)
