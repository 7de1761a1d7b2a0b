"""How to reach an API server and who to be there: from inside a pod, or by a kubeconfig.

Both are read by kubernetes_asyncio (contexts, exec plugins, OIDC, service account tokens that are renewed on disk).
Requests go through httpx, for three reasons. aiohttp, on which that library is built, sends a PUT again by itself when
a kept connection breaks: the second one is answered 409 though the first has landed. The library's models drop the
fields that they do not know from an object that is read and written back. And its client trusts proxies of the
environment, and sets no limit to connecting.
"""

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import load_kube_config

from fencepost.server.locks.source import REQUEST_TIMEOUT, SourceConfigError
from fencepost.server.setting_files import SettingFileError, read_setting_file

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its token, its namespace and the CA."""
READ_TIMEOUT: Final = 30.0
"""Seconds that an exec plugin may take. A request waits REQUEST_TIMEOUT for it, and the next one finds it done."""
_BEARER: Final = "BearerToken"


@dataclass(frozen=True, slots=True)
class InCluster:
    """The service account of the pod that we run in."""

    directory: Path

    def __str__(self) -> str:
        return f"the service account in {self.directory}"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A context of a kubeconfig; None: the current one, and the files of $KUBECONFIG or ~/.kube/config."""

    file: str | None
    context: str | None

    @property
    def files(self) -> str:
        """Its path, or several with colons between them as kubectl takes them."""
        return self.file or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())

    def __str__(self) -> str:
        return f"the kubeconfig {self.files}" + (f" with context {self.context}" if self.context else "")


Access = InCluster | Kubeconfig


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server, credentials for it, and the namespace that they come with. `connection`: what a client is made
    of, that is all but the token.
    """

    access: Access
    configuration: Configuration
    namespace: str
    connection: tuple[object, ...]

    @property
    def url(self) -> str:
        """Where it is, without what may be secret."""
        url = httpx.URL(str(self.configuration.host))
        return f"{url.scheme}://{url.netloc.decode()}"

    async def headers(self) -> dict[str, str]:
        """Return the headers with our credentials; from inside a pod the token is read anew each minute."""
        try:
            token = await self.configuration.get_api_key_with_prefix(_BEARER)
        except (ConfigException, OSError, ValueError) as error:
            raise _unreadable(self.access, error) from None
        return {"Authorization": token.strip()} if token else {}

    def client(self) -> httpx.AsyncClient:
        """Make a client. Raises SourceConfigError when certificates cannot be read."""
        try:
            return httpx.AsyncClient(
                base_url=str(self.configuration.host),
                verify=self._tls(),
                proxy=self.configuration.proxy or None,
                trust_env=False,
                # managedFields of a Lease name who wrote it by this.
                headers={"User-Agent": "fencepost"},
                timeout=REQUEST_TIMEOUT,
                # Each request that waits for a lock has a connection that waits for its event.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            )
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
            raise _unreadable(self.access, error) from None

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.configuration.ssl_ca_cert)
        # Python 3.13 asks of a CA what many clusters' own lack (an authority key identifier); client-go does not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.configuration.cert_file:
            context.load_cert_chain(self.configuration.cert_file, self.configuration.key_file)
        if not self.configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


async def read(access: Access) -> ApiServer:
    """Read the credentials anew; an exec plugin is run. Raises SourceConfigError."""
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            configuration, namespace = await _read(access)
        return ApiServer(access, configuration, namespace, _connection(configuration))
    except Exception as error:  # noqa: BLE001 - a malformed kubeconfig makes the library stumble in many ways
        raise _unreadable(access, error) from None


async def _read(access: Access) -> tuple[Configuration, str]:
    configuration = Configuration()
    match access:
        case InCluster(directory):
            InClusterConfigLoader(str(directory / "token"), str(directory / "ca.crt")).load_and_set(configuration)
            return configuration, read_setting_file(directory / "namespace")
        case Kubeconfig(_, context):
            loader = await load_kube_config(access.files, context, configuration, persist_config=False)
            return configuration, _context_namespace(loader.current_context)


def _connection(our: Configuration) -> tuple[object, ...]:
    files = (our.ssl_ca_cert, our.cert_file, our.key_file)
    contents = tuple(Path(file).read_bytes() if file else None for file in files)
    return our.host, our.proxy, our.tls_server_name, our.verify_ssl, contents


def _context_namespace(context: Any) -> str:
    return str(context["context"].get("namespace") or "default")


def _unreadable(access: Access, error: Exception) -> SourceConfigError:
    # The library's messages may quote a whole user of a kubeconfig, secrets included, after the word "in"; a parser's
    # quote the line. Only the harmless part is shown, and the error is not chained.
    match error:
        case OSError(strerror=str(why), filename=name):
            shown = f"{why}: {name}" if name else why
        case SettingFileError():
            shown = f"namespace: {error}"
        case ConfigException():
            shown = str(error).partition(" in ")[0]
        case _:
            shown = type(error).__name__
    return SourceConfigError(f"{access} cannot be used: {shown}")
