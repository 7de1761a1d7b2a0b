"""Outside of pods: kubeconfigs, certificates, exec plugins, wrong URLs."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kubernetes_access.using import OURS, Make, acquired, works

from fencepost.locks.kubernetes import api as kubernetes_api
from fencepost.locks.kubernetes.source import from_url
from fencepost.locks.registry import SourceContext
from fencepost.locks.source import Grant, SourceConfigError, SourceError, SourceUnavailableError
from fencepost.testing.servers.kubernetes import ADMIN, Cluster
from fencepost.testing.servers.waiting import eventually

pytestmark = pytest.mark.long("tests of Kubernetes")


async def test_a_client_certificate(make: Make, kube: Cluster) -> None:
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kube.kubeconfig("certificate", files)
    with pytest.raises(SourceError, match='User "cert-user" cannot get resource "leases"'):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"))


async def test_a_context_of_the_users_own_kubeconfig(
    make: Make, kube: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = kube.kubeconfig("contexts", {"token": ADMIN})
    output = json.loads(config.read_text())
    output["contexts"].append({"name": "elsewhere", "context": {"cluster": "test", "user": "me", "namespace": OURS}})
    config.write_text(json.dumps(output))
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
    output = json.loads(config.read_text())
    output["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes.default"
    config.write_text(json.dumps(output))
    assert isinstance(await acquired(make(f"kubernetes://kubeconfig?file={config}"), "sni"), Grant)
    output["clusters"][0]["cluster"]["tls-server-name"] = "another"
    config.write_text(json.dumps(output))
    with pytest.raises(SourceUnavailableError, match="certificate"):
        await acquired(make(f"kubernetes://kubeconfig?file={config}"), "sni")


@pytest.mark.parametrize(
    ("content", "reported"),
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


async def test_an_exec_plugin_that_hangs_is_given_up(
    make: Make, kube: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "REQUEST_TIMEOUT", 0.5)
    hangs = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(tmp_path / "pipe")]}
    os.mkfifo(tmp_path / "pipe")
    source = make(f"kubernetes://kubeconfig?file={kube.kubeconfig('hangs', {'exec': hangs})}")
    with pytest.raises(SourceUnavailableError, match="has not answered within"):
        await acquired(source)
    output = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": ADMIN}}
    (tmp_path / "pipe").write_text(json.dumps(output))

    async def done() -> bool:
        try:
            return isinstance(await acquired(source, "after a while"), Grant)
        except SourceUnavailableError:
            return False

    await eventually(done, what="the plugin's token")


@pytest.mark.parametrize(
    ("url", "reported"),
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
def test_a_url_that_has_something_else_is_refused(url: str, reported: str) -> None:
    with pytest.raises(SourceConfigError, match=reported) as error:
        from_url(url, SourceContext("kube", ""))
    assert str(error.value).startswith("the URL of source kube ")
    assert "s3cret" not in str(error.value)
