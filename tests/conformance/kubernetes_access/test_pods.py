"""In a pod: the service account, its Role, and each verb of it."""

import copy
import shutil
from pathlib import Path

import pytest
from tests.conformance.kubernetes_access.using import GATEWAY, OURS, Make, acquired, works
from tests.kube.manifests import object_of

from fencepost.server.locks.kubernetes import KubernetesLeases
from fencepost.server.locks.kubernetes_api import VERBS
from fencepost.server.locks.source import Grant, SourceError, SourceUnavailableError
from fencepost.testing.servers.kubernetes import ADMIN, NAMESPACE, Cluster
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests of Kubernetes")


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


async def test_a_pod_with_the_role_of_the_manifests_can_do_everything(make: Make, pod: Path) -> None:
    assert await works(make(f"kubernetes://in-cluster?serviceaccount={pod}"), "a pod's")


async def test_a_service_accounts_token_that_was_renewed_on_disk_is_used(make: Make, kube: Cluster, pod: Path) -> None:
    good = (pod / "token").read_text()
    (pod / "token").write_text("expired")
    source = make(f"kubernetes://in-cluster?serviceaccount={pod}")
    with pytest.raises(SourceError, match="renew the credentials of the service account in"):
        await acquired(source)
    (pod / "token").write_text(f"{good}\n")
    assert isinstance(await acquired(source, "renewed"), Grant)
    assert kube.ask("GET", "/version").is_success


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
