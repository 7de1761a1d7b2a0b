"""What only the source on Kubernetes has, on a real kube-apiserver. See also test_kubernetes_access."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.kube.apiserver import ADMIN, NAMESPACE, Cluster, cluster
from tests.kube.manifests import FOLDER, objects
from tests.support.interleave import eventually

from fencepost.locks.kubernetes import lease as kubernetes_lease
from fencepost.locks.kubernetes.api import KubernetesApi
from fencepost.locks.kubernetes.lease import LeaseObject, hashed_name, own_name
from fencepost.locks.kubernetes.source import KubernetesLeases, from_url
from fencepost.locks.registry import SourceContext
from fencepost.locks.source import Grant, Holder, SourceError, SourceUnavailableError

pytestmark = pytest.mark.long("tests of Kubernetes")

ROOT = Path(__file__).parents[2]
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LOCK = "orders/order-123"


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("kube")) as running:
        yield running


@pytest.fixture
def url(kube: Cluster) -> str:
    """Of a namespace of the test's own."""
    made = kube.ask("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"generateName": "test-"}})
    return (
        f"kubernetes://kubeconfig/{made.json()['metadata']['name']}?file={kube.kubeconfig('admin', {'token': ADMIN})}"
    )


Make = Callable[..., KubernetesLeases]


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    """Give a function that makes a source, as another worker would."""
    async with AsyncExitStack() as stack:

        def one(options: str = "") -> KubernetesLeases:
            source = from_url(url + options, SourceContext("kube", ""))
            stack.push_async_callback(source.close)
            return source

        yield one


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


@pytest.fixture
def leases(kube: Cluster, url: str) -> Leases:
    return Leases(kube, url)


async def granted(source: KubernetesLeases, lock: str = LOCK, *, ttl_ms: int = 1000, **how: Any) -> Grant:
    wanted = {"owner": "somebody", "tokens": 1, "wait_s": 0.0, **how}
    grant = await source.acquire(lock, ttl_ms=ttl_ms, **wanted)
    assert isinstance(grant, Grant), grant
    return grant


def elected(name: str, identity: str, seconds: int = 1) -> dict[str, Any]:
    """Write a Lease as client-go's leader election does."""
    spec = {"holderIdentity": identity, "leaseDurationSeconds": seconds, "leaseTransitions": 3}
    return {"kind": "Lease", "metadata": {"name": name, "labels": {"their": "own"}}, "spec": spec}


async def test_a_lease_that_an_operator_deletes_is_lost_and_not_made_again_by_its_holder(
    make: Make, leases: Leases
) -> None:
    source = make()
    grant = await granted(source, ttl_ms=30_000)
    leases.delete(LOCK)
    # It has seen the Lease, and asks for the update straight away: the API server creates what a PUT does not find.
    assert await source.mint(LOCK, grant.handle, 1) is None
    assert leases.get(LOCK) == {}
    assert await source.renew(LOCK, grant.handle, 30_000) is False
    await source.release(LOCK, grant.handle)
    assert leases.get(LOCK) == {}


async def test_tokens_go_on_above_after_a_lease_was_deleted(make: Make, leases: Leases) -> None:
    source = make()
    before = await granted(source, tokens=5, ttl_ms=30_000)
    leases.delete(LOCK)
    after = await granted(make(), tokens=2)
    assert after.tokens[0] > before.tokens[-1]
    assert await source.mint(LOCK, before.handle, 1) is None


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


async def test_a_clock_that_stands_still_draws_new_numbers_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that changes nothing is no write: two mints in one microsecond would be one number."""
    monkeypatch.setattr(kubernetes_lease, "wall_clock", lambda: "2026-01-02T03:04:05.000006Z")
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
        assert str(grant.tokens[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"]
        minted = await source.mint(LOCK, grant.handle, count)
        assert minted is not None
        assert str(minted[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"]
        await source.release(LOCK, grant.handle)


@pytest.mark.parametrize("time", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", None])
async def test_times_in_a_lease_decide_nothing(make: Make, leases: Leases, time: str | None) -> None:
    source = make()
    grant = await granted(source, ttl_ms=2000)
    lease = leases.get(LOCK)
    lease["spec"] |= {"renewTime": time, "acquireTime": time}
    leases.put(lease)
    other = make()
    held = await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.expires_ms == 2000, "as long as it has yet to be seen unchanged"
    assert (await granted(other, wait_s=20)).tokens[0] > grant.tokens[0]


async def test_those_who_only_ask_now_and_then_get_an_expired_lock_too(make: Make) -> None:
    await granted(make())
    other = make()

    async def asks() -> bool:
        return isinstance(await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0), Grant)

    assert not await asks()
    await eventually(asks, what="the lock of somebody who does not renew")


async def test_a_mint_keeps_waiters_away_as_a_renewal_does(make: Make) -> None:
    source = make()
    grant = await granted(source)
    waiter = asyncio.create_task(make().acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=2.5))
    while not waiter.done():
        assert await source.mint(LOCK, grant.handle, 1) is not None
        await asyncio.wait([waiter], timeout=0.25)
    assert isinstance(await waiter, Holder)


async def test_a_waiter_hears_of_a_release_at_once(make: Make) -> None:
    source = make()
    grant = await granted(source, ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=60))
    await asyncio.wait([waiter], timeout=0.5)
    await source.release(LOCK, grant.handle)
    async with asyncio.timeout(5):
        await waiter


async def test_a_waiter_hears_of_a_deletion_at_once(make: Make, leases: Leases) -> None:
    await granted(make(), ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=60))
    await asyncio.wait([waiter], timeout=0.5)
    leases.delete(LOCK)
    async with asyncio.timeout(5):
        await waiter


async def test_two_processes_race_and_never_are_both_in(url: str) -> None:
    async def race() -> list[list[int]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.kube.racer", url, LOCK, "10"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        drawn: list[list[int]] = json.loads(said)
        return drawn

    rounds = sorted(itertools.chain.from_iterable(await asyncio.gather(race(), race())))
    assert len(rounds) == 20
    # Sorted by their first number, no round reaches into the next: nobody drew while another held the lock.
    drawn = list(itertools.chain.from_iterable(rounds))
    assert drawn == sorted(set(drawn))


Real = Callable[[dict[str, Any]], Awaitable[LeaseObject | None]]


def api_of(source: KubernetesLeases) -> KubernetesApi:
    return source._api  # noqa: SLF001 - to break the line at one place


@pytest.mark.parametrize("what", ["create", "update"])
async def test_a_grant_whose_answer_was_lost_is_found(make: Make, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    source = make()
    if what == "update":
        await source.release(LOCK, (await granted(source)).handle)
    real: Real = getattr(api_of(source), what)

    async def answer_lost(lease: dict[str, Any]) -> LeaseObject | None:
        await real(lease)
        raise SourceUnavailableError("the connection broke")

    monkeypatch.setattr(api_of(source), what, answer_lost)
    grant = await granted(source, ttl_ms=30_000)
    monkeypatch.undo()
    assert await source.renew(LOCK, grant.handle, 30_000) is True


@pytest.mark.parametrize("what", ["create", "update"])
async def test_a_grant_that_was_sent_twice_on_its_way_is_found(
    make: Make, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    source = make()
    if what == "update":
        await source.release(LOCK, (await granted(source)).handle)
    real: Real = getattr(api_of(source), what)

    async def twice(lease: dict[str, Any]) -> LeaseObject | None:
        await real(lease)
        return await real(lease)

    monkeypatch.setattr(api_of(source), what, twice)
    grant = await granted(source, ttl_ms=30_000)
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
    monkeypatch.setattr(kubernetes_lease, "MOST_NATIVE", 0)
    with pytest.raises(SourceError, match="cannot be a source of tokens"):
        await granted(make(), ttl_ms=3_600_000)
    monkeypatch.undo()
    assert await make().inspect(LOCK) is None


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


async def test_doctor_names_an_old_version_and_a_counter_that_runs_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
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
