"""Names and contents of Leases, shared with client-go; what doctor reports; the manifests."""

from typing import Any

import pytest
from tests.conformance.kubernetes.operating import LOCK, Leases, Make, api_of, elected, granted
from tests.kube.manifests import FOLDER, objects

from fencepost.server.locks.kubernetes_api import hashed_name, own_name
from fencepost.server.locks.source import Holder, SourceError
from fencepost.testing.servers.kubernetes import Cluster

pytestmark = pytest.mark.long("tests of Kubernetes")


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
