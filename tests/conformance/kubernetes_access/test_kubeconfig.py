"""Outside of pods: kubeconfigs, certificates, exec plugins, wrong URLs."""

from pathlib import Path

import pytest
from tests.conformance.kubernetes_access.using import Make, acquired

from fencepost.server.locks.source import SourceConfigError, SourceError
from fencepost.testing.servers.kubernetes import Cluster

pytestmark = pytest.mark.long("tests of Kubernetes")


async def test_a_client_certificate(make: Make, kube: Cluster) -> None:
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kube.kubeconfig("certificate", files)
    with pytest.raises(SourceError, match='User "cert-user" cannot get resource "leases"'):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))


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
