"""A real kube-apiserver with an etcd of its own; no kubelet, no controllers: what Leases need.

Users come from a static token file, permissions from RBAC. Debian has no kube-apiserver: `.ci/kube-apiserver` in the
clone of Fencepost builds one into a cache, where it is found.
"""

import http
import json
import os
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from fencepost.testing.servers.lock_services import MissingServerError
from fencepost.testing.servers.processes import free_port, listens
from fencepost.testing.servers.server import Server, Started, cache

VERSION: Final = "v1.35.4"
ADMIN: Final = "admin-token"
"""The bearer token of a client that may do everything."""
NAMESPACE: Final = "locks"


def installed() -> Path:
    """Return the kube-apiserver to run. MissingServerError where there is none, or no etcd, or no openssl."""
    for program, package in (("etcd", "etcd-server"), ("openssl", "openssl")):
        if shutil.which(program) is None:
            raise MissingServerError(f"no {program}: apt-get install {package}")
    candidates = (
        os.environ.get("KUBE_APISERVER"),
        shutil.which("kube-apiserver"),
        cache() / f"kube-apiserver-{VERSION}",
    )
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise MissingServerError("no kube-apiserver: .ci/kube-apiserver builds it from its Go modules in about ten minutes")


def _openssl(directory: Path, *arguments: str) -> None:
    command = ["openssl", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)  # noqa: S603 - no shell


def certificates(directory: Path) -> None:
    """Make a CA, the server's certificate, the client certificate of user `cert-user`, a key for service accounts."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    # Python from 3.13 on takes no CA that does not say that it signs certificates.
    signs = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(directory, "req", "-x509", *key, *signs, "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.crt")
    for name, subject, extension in (
        ("server", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:kubernetes.default"),
        ("client", "/O=lockers/CN=cert-user", "extendedKeyUsage=clientAuth"),
    ):
        _openssl(
            *(directory, "req", "-x509", *key, "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", subject),
            *("-addext", extension, "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
        )
    _openssl(directory, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "accounts.key")
    _openssl(directory, "pkey", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")


class Cluster(Started):
    """One kube-apiserver on one etcd, not started yet. MissingServerError where a program is not installed."""

    def __init__(self, directory: Path) -> None:
        program = installed()
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        certificates(directory)
        # token, user, uid, groups
        (directory / "tokens.csv").write_text(
            f'{ADMIN},admin,1,"system:masters"\ngateway-token,gateway,2\nnobody-token,nobody,3\n'
        )
        self._etcd = self._make_etcd(free_port(), free_port())
        self.apiserver = self._make_apiserver(program)

    def _make_etcd(self, port: int, peers: int) -> Server:
        self._etcd_url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
        command = (
            *("etcd", "--name", "default", "--data-dir", self.directory / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", self._etcd_url, "--advertise-client-urls", self._etcd_url),
            *(
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"default={peer}",
            ),
        )
        return Server(command, self.directory / "etcd.log", lambda: listens(port))

    def _make_apiserver(self, program: Path) -> Server:
        at = self.directory
        command = (
            *(program, f"--etcd-servers={self._etcd_url}", "--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *(f"--tls-cert-file={at}/server.crt", f"--tls-private-key-file={at}/server.key", f"--cert-dir={at}"),
            *(f"--client-ca-file={at}/ca.crt", f"--token-auth-file={at}/tokens.csv", "--authorization-mode=RBAC"),
            *(f"--service-account-key-file={at}/accounts.pub", f"--service-account-signing-key-file={at}/accounts.key"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"),
        )
        return Server(command, at / "apiserver.log", self._ready)

    def _ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return self.ask("GET", "/readyz", timeout=1).status_code == http.HTTPStatus.OK
        return False

    def ask(
        self, method: str, path: str, body: object = None, *, token: str = ADMIN, timeout: float = 10
    ) -> httpx.Response:
        """Ask the API server as the user of this bearer token."""
        with httpx.Client(
            base_url=self.url, verify=ssl.create_default_context(cafile=self.directory / "ca.crt"), trust_env=False
        ) as client:
            return client.request(
                method, path, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=timeout
            )

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or replace objects, as `kubectl apply` would."""
        for body in objects:
            group = body["apiVersion"]
            root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
            kind = f"{body['kind'].lower()}s"
            namespace = body["metadata"].get("namespace")
            path = f"{root}/namespaces/{namespace}/{kind}" if namespace else f"{root}/{kind}"
            answer = self.ask("POST", path, body)
            if answer.status_code == http.HTTPStatus.CONFLICT:
                answer = self.ask("PUT", f"{path}/{body['metadata']['name']}", body)
            answer.raise_for_status()

    def kubeconfig(self, name: str, user: dict[str, Any], *, namespace: str | None = NAMESPACE) -> Path:
        """Write a kubeconfig whose current context has this user. JSON is YAML."""
        context = {"cluster": "test", "user": "me", **({"namespace": namespace} if namespace else {})}
        cluster = {"server": self.url, "certificate-authority": str(self.directory / "ca.crt")}
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "one",
                    "contexts": [{"name": "one", "context": context}],
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "me", "user": user}],
                }
            )
        )
        return path

    def start(self) -> None:
        """Start etcd and the API server, and return once it serves."""
        self._etcd.start()
        self._etcd.wait()
        self.apiserver.start()
        self.apiserver.wait()
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def stop(self) -> None:
        self.apiserver.stop()
        self._etcd.stop()
