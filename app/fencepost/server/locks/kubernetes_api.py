"""Leases of one namespace, as the API server keeps them: read, create, update, watch.

An update carries the uid and the resourceVersion of what it changes, and the API server refuses it (409) once either
is another one: this is the compare-and-set that everything in kubernetes.py is made of.
"""

import asyncio
import hashlib
import math
import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast

import httpx
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import load_kube_config

from fencepost.server.locks.source import (
    MOST_NATIVE,
    REQUEST_TIMEOUT,
    Form,
    Option,
    SourceConfigError,
    SourceError,
    SourceUnavailableError,
    one_of,
    text,
)
from fencepost.server.locks.source import read as read_source_url
from fencepost.server.setting_files import SettingFileError, read_setting_file

# How to reach an API server and who to be there: from inside a pod, or by a kubeconfig.
#
# Both are read by kubernetes_asyncio (contexts, exec plugins, OIDC, service account tokens that are renewed on disk).
# Requests go through httpx, for three reasons. aiohttp, on which that library is built, sends a PUT again by itself
# when a kept connection breaks: the second one is answered 409 though the first has landed. The library's models drop
# the fields that they do not know from an object that is read and written back. And its client trusts proxies of the
# environment, and sets no limit to connecting.

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
            current: Any = loader.current_context
            return configuration, str(current["context"].get("namespace") or "default")


def _connection(our: Configuration) -> tuple[object, ...]:
    files = (our.ssl_ca_cert, our.cert_file, our.key_file)
    contents = tuple(Path(file).read_bytes() if file else None for file in files)
    return our.host, our.proxy, our.tls_server_name, our.verify_ssl, contents


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


# The URL of a source on Kubernetes.
#
# kubernetes://in-cluster[/NAMESPACE][?serviceaccount=DIRECTORY][&names=hashed|own]
# kubernetes://kubeconfig[/NAMESPACE][?file=PATH][&context=NAME][&names=hashed|own]

Names = Literal["hashed", "own"]
"""Which Lease is a lock's: one of Fencepost's own, or the one of the lock's name where a Lease can have it."""

_IN_CLUSTER: Final = "kubernetes://in-cluster"
_KUBECONFIG: Final = "kubernetes://kubeconfig"
_NAMES: Final = Option("names", one_of("hashed", "own"), "hashed")
_DIRECTORY: Final = Option("serviceaccount", text(), SERVICE_ACCOUNT, only=_IN_CLUSTER)
_FILE: Final[Option[str | None]] = Option("file", text(), None, only=_KUBECONFIG)
_CONTEXT: Final[Option[str | None]] = Option("context", text(), None, only=_KUBECONFIG)

_FORM: Final = Form(
    f"{_IN_CLUSTER}[/NAMESPACE][?option=value&…] or {_KUBECONFIG}[/NAMESPACE][?option=value&…]: address and credentials"
    " come from the pod or from a kubeconfig",
    (_NAMES, _DIRECTORY, _FILE, _CONTEXT),
    re.compile("(/([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?)?"),
    places=("in-cluster", "kubeconfig"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a URL has. `namespace` None: the one that the credentials come with."""

    access: Access
    namespace: str | None
    names: Names


def parse(url: str, source: str) -> Options:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read_source_url(url, source, _FORM)
    access: Access
    if found.place == "in-cluster":
        access = InCluster(Path(found[_DIRECTORY]))
    else:
        access = Kubeconfig(found[_FILE], found[_CONTEXT])
    return Options(access, found.path.strip("/") or None, cast("Names", found[_NAMES]))


# The Lease object of a lock: its name, what is written into it, what is read out of it.
#
# Nothing here talks to the API server. The object is kept as the JSON it came as, so that an update gives back what
# newer versions of Kubernetes have added to it.

LOCK_ANNOTATION: Final = "fencepost/lock"
"""Carries the lock's full name: the Lease's own name has room for less."""
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "fencepost"}
DEFAULT_SECONDS: Final = 15
"""How long a Lease without leaseDurationSeconds is taken to live: the default of client-go."""
MOST_TRANSITIONS: Final = 2**31 - 1
"""leaseTransitions is an int32, and only people read it here."""

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
_READABLE: Final = 64  # characters of the lock's name that its Lease's name repeats
_VERSION: Final = re.compile(r"[1-9][0-9]*")
_OURS: Final = re.compile(r"(.*)_[0-9a-f]{32}", re.DOTALL)
_MICROSECOND: Final = timedelta(microseconds=1)


def hashed_name(lock: str) -> str:
    """Name the Lease of a lock: a part for people, and 128 bits of the full name's SHA-256."""
    readable = re.sub(r"[^a-z0-9]+", "-", lock.lower())[:_READABLE].strip("-")
    digest = hashlib.sha256(lock.encode()).hexdigest()[:32]
    return "-".join(part for part in ("fencepost", readable, digest) if part)


def own_name(lock: str) -> str | None:
    """Return the lock's name if a Lease can have it, else None."""
    return lock if len(lock) <= _LONGEST_NAME and _SUBDOMAIN.fullmatch(lock) else None


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """One state of a Lease object, as the API server answered it."""

    body: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def version(self) -> tuple[str, str]:
        """What differs between any two states: the object's uid and its resourceVersion."""
        metadata = self.body["metadata"]
        return metadata["uid"], metadata["resourceVersion"]

    @property
    def _spec(self) -> dict[str, Any]:
        return self.body.get("spec") or {}

    @property
    def holder(self) -> str:
        """The identity that holds it; empty when it is free."""
        return self._spec.get("holderIdentity") or ""

    @property
    def owner(self) -> str:
        """The holder as people know it: without what makes an identity of ours new for every acquisition."""
        ours = _OURS.fullmatch(self.holder)
        return ours[1] if ours else self.holder

    @property
    def seconds(self) -> int:
        """How long it has to be seen unchanged before another client may take it."""
        return self._spec.get("leaseDurationSeconds") or DEFAULT_SECONDS

    @property
    def lock_annotation(self) -> str | None:
        """The full name of the lock that it belongs to, where its annotation has it."""
        found = (self.body["metadata"].get("annotations") or {}).get(LOCK_ANNOTATION)
        return None if found is None else str(found)

    @property
    def number(self) -> int:
        """Its resourceVersion as a token. Raises SourceError where that is none."""
        return number(self.version[1], f"Lease {self.name}")

    def taken(self, identity: str, ttl_ms: int) -> dict[str, Any]:
        now = self._later()
        transitions = min((self._spec.get("leaseTransitions") or 0) + 1, MOST_TRANSITIONS)
        return self._with(
            holderIdentity=identity,
            leaseDurationSeconds=whole_seconds(ttl_ms),
            acquireTime=now,
            renewTime=now,
            leaseTransitions=transitions,
        )

    def renewed(self, ttl_ms: int | None = None) -> dict[str, Any]:
        """Write the object that its holder draws a new resourceVersion with; `ttl_ms` None leaves the duration."""
        seconds = self.seconds if ttl_ms is None else whole_seconds(ttl_ms)
        return self._with(renewTime=self._later(), leaseDurationSeconds=seconds)

    def released(self) -> dict[str, Any]:
        """Write the object that frees it, the same as client-go's ReleaseOnCancel does."""
        return self._with(holderIdentity="", leaseDurationSeconds=1, renewTime=self._later())

    def _with(self, **spec: Any) -> dict[str, Any]:
        # uid and resourceVersion stay in metadata: they are the precondition of the update. The uid counts too, since
        # the API server creates a Lease that is updated and not there.
        return {**self.body, "spec": {**self._spec, **spec}}

    def _later(self) -> str:
        """Give the time for renewTime, another one than is written there: an update that changes nothing is no write
        to the API server, and draws no number.
        """
        now = wall_clock()
        return now if now != self._spec.get("renewTime") else _text(datetime.fromisoformat(now) + _MICROSECOND)


def new_lease(name: str, lock: str, identity: str, ttl_ms: int) -> dict[str, Any]:
    """Write the object of a lock that was never taken before."""
    now = wall_clock()
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": MANAGED_BY, "annotations": {LOCK_ANNOTATION: lock}},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": whole_seconds(ttl_ms),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        },
    }


def number(version: str, what: str) -> int:
    """Read a resourceVersion as a number. Raises SourceError where it cannot be a token."""
    if not _VERSION.fullmatch(version):
        raise SourceError(f"{what} has the resourceVersion {version!r}, which is no number: it cannot be a token")
    found = int(version)
    if found > MOST_NATIVE:
        raise SourceError(
            f"{what} has the resourceVersion {found}, above 2^48-1: this cluster's storage does not count as etcd "
            "does, and cannot be a source of tokens; take another one"
        )
    return found


def whole_seconds(ttl_ms: int) -> int:
    """Round a TTL up to what leaseDurationSeconds can hold."""
    return max(1, math.ceil(ttl_ms / 1000))


def wall_clock() -> str:
    """Give the time as the API writes it, for people who look at the Lease. Nothing is decided by it."""
    return _text(datetime.now(UTC))  # noqa: TID251 - for people only; who waits measures on its own monotonic clock


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


VERBS: Final = ("get", "create", "update", "list", "watch")
"""What the Role has to allow on leases.coordination.k8s.io (deploy/kubernetes/rbac.yaml)."""
OK: Final = frozenset({200, 201})
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_BROKEN: Final = 500
_PAUSE: Final = 0.2
"""Seconds before a watch that broke is asked for again."""


class KubernetesApi:
    """One API server. `namespace` None: the one that the credentials come with."""

    def __init__(self, access: Access, namespace: str | None) -> None:
        self._access, self._wanted = access, namespace
        self._server: ApiServer | None = None
        self._client: httpx.AsyncClient | None = None
        self._connection: tuple[object, ...] = ()
        self._retired: list[httpx.AsyncClient] = []
        self._reading: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close all connections, once what is under way has come to its end."""
        if under_way := {*self._sending, *([self._reading] if self._reading else [])}:
            _, late = await asyncio.wait(under_way, timeout=2 * REQUEST_TIMEOUT)
            for task in late:
                task.cancel()
        clients = [*self._retired, *([self._client] if self._client else [])]
        self._retired, self._client, self._server = [], None, None
        for client in clients:
            await client.aclose()

    @property
    def namespace(self) -> str:
        return self._wanted or (self._server.namespace if self._server else "default")

    def where(self, name: str) -> str:
        return f"Lease {self.namespace}/{name}"

    async def get(self, name: str) -> LeaseObject | None:
        """Read a Lease as it is now. None: there is none. Raises SourceError."""
        answer = await self._ask("GET", name)
        if answer.status_code == NOT_FOUND:
            return None
        return self._lease(answer, "get", name)

    async def create(self, lease: dict[str, Any]) -> LeaseObject | None:
        """Create a Lease. None: it is there already. Raises SourceError."""
        answer = await self._ask("POST", "", body=lease)
        if answer.status_code == CONFLICT:
            return None
        return self._lease(answer, "create", lease["metadata"]["name"])

    async def update(self, lease: dict[str, Any]) -> LeaseObject | None:
        """Update a Lease that is still the one that was read. None: it is another one, or gone. Raises SourceError."""
        metadata = lease["metadata"]
        answer = await self._ask("PUT", metadata["name"], body=lease)
        if answer.status_code in {CONFLICT, NOT_FOUND}:
            return None
        written = self._lease(answer, "update", metadata["name"])
        if written.number <= number(metadata["resourceVersion"], self.where(metadata["name"])):
            raise SourceError(
                f"{self.where(metadata['name'])} has the resourceVersion {written.number} after an update of "
                f"{metadata['resourceVersion']}, which is not higher: this cluster cannot be a source of tokens"
            )
        return written

    async def counter(self) -> int:
        """Return the resourceVersion that the cluster has come to. Raises SourceError."""
        found = self._read_answer(await self._ask("GET", "", params={"limit": "1"}), "list", "")
        version = (found.get("metadata") or {}).get("resourceVersion", "")
        return number(version, f"the list of Leases in {self.namespace}")

    async def wait_for_change(self, lease: LeaseObject, within_s: float) -> None:
        """Return when the Lease is no longer as it was read, or after `within_s`, or early for no reason: a caller
        that waits looks again anyway. Raises SourceError where watching is refused.
        """
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={lease.name}",
            "resourceVersion": lease.version[1],
            "timeoutSeconds": str(math.ceil(within_s)),
        }
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                # A watch that breaks at once is not asked for again at once.
                if within_s < _PAUSE or not await self._watch_once(lease.name, params, within_s):
                    await asyncio.sleep(_PAUSE)

    async def _watch_once(self, name: str, params: dict[str, str], within_s: float) -> bool:
        """Wait for an event. False: the watch ended without one."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                server, client = await self._connect()
                request = client.build_request(
                    *("GET", self._path(server)),
                    params=params,
                    headers=await server.headers(),
                    timeout=httpx.Timeout(REQUEST_TIMEOUT, read=within_s + REQUEST_TIMEOUT),
                    extensions=_sni(server),
                )
            answer = await self._send(client, request, stream=True)
            try:
                return await self._event(answer, name)
            finally:
                await answer.aclose()
        except httpx.RequestError:
            return False

    async def _event(self, answer: httpx.Response, name: str) -> bool:
        """Wait for the first line of a watch, of whatever kind. False: it ended without one."""
        if answer.status_code == GONE:
            return True
        if answer.status_code in {_UNAUTHORIZED, _TOO_MANY} or answer.status_code >= _BROKEN:
            return False  # the look that follows reports it, or renews the credentials
        if answer.status_code not in OK:
            await answer.aread()
            self._read_answer(answer, "watch", name)
        async for _ in answer.aiter_lines():
            return True
        return False

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask what is no Lease; for `doctor`. Raises SourceError."""
        return self._read_answer(await self._ask("POST", path, body=body), "create", path)

    async def version(self) -> dict[str, Any]:
        """Return the API server's version. Raises SourceError."""
        return self._read_answer(await self._ask("GET", "/version"), "get", "/version")

    async def _ask(
        self, method: str, path: str, *, params: dict[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        """Send one request, and return its answer unless it means that the server cannot be asked. `path`: a Lease's
        name, empty for all of them, or what begins with a slash.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                server, client = await self._connect()
                for last in (False, True):
                    url = path if path.startswith("/") else f"{self._path(server)}/{path}".rstrip("/")
                    headers, extensions = await server.headers(), _sni(server)
                    request = client.build_request(
                        method, url, params=params, json=body, headers=headers, extensions=extensions
                    )
                    answer = await self._send(client, request)
                    if answer.status_code != _UNAUTHORIZED or last:
                        break
                    server, client = await self._connect(instead_of=server)
        except TimeoutError:
            raise SourceUnavailableError(
                f"{self._at()} has not answered within {REQUEST_TIMEOUT:.0f} s: try again"
            ) from None
        except httpx.RequestError as error:
            raise SourceUnavailableError(
                f"{self._at()} cannot be asked ({type(error).__name__}: {error}): see that it runs"
            ) from error
        if answer.status_code == _TOO_MANY or answer.status_code >= _BROKEN:
            raise SourceUnavailableError(f"{self._at()} answered {answer.status_code}: {_message(answer)}: try again")
        return answer

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Send a request that comes to its end, or to its time limit, though its caller gives up. httpx leaves a
        connection open for good whose TLS handshake is cancelled; and a write had better not be cut off.
        """
        sending = asyncio.create_task(client.send(request, stream=stream))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(self._close_unwanted)
            raise

    def _close_unwanted(self, sent: asyncio.Task[httpx.Response]) -> None:
        """Take note of what came of a request whose caller has gone, and close its answer."""
        if not sent.cancelled() and sent.exception() is None:
            closing = asyncio.create_task(sent.result().aclose())
            self._sending.add(closing)
            closing.add_done_callback(self._sending.discard)

    def _lease(self, answer: httpx.Response, verb: str, name: str) -> LeaseObject:
        body = self._read_answer(answer, verb, name)
        metadata = body.get("metadata") or {}
        if not {"name", "uid", "resourceVersion"} <= metadata.keys():
            raise SourceError(f"{self._at()} answered to {verb} {self.where(name)} with no Lease: check the address")
        return LeaseObject(body)

    def _read_answer(self, answer: httpx.Response, verb: str, name: str) -> dict[str, Any]:
        """Return an answer's body. Raises SourceError where it is a refusal."""
        what = f"{self._at()}: to {verb} {self.where(name) if name and '/' not in name else name or 'Leases'}"
        if answer.status_code == _FORBIDDEN:
            raise SourceError(
                f"{what} is forbidden: {_message(answer)}; allow {self._access} the verb {verb} on "
                f"leases.coordination.k8s.io in namespace {self.namespace}, as deploy/kubernetes/rbac.yaml does"
            )
        if answer.status_code == _UNAUTHORIZED:
            raise SourceError(f"{what} was not allowed to an unknown user: renew the credentials of {self._access}")
        if answer.status_code not in OK:
            raise SourceError(f"{what} was refused with {answer.status_code}: {_message(answer)}")
        body = _json(answer)
        if body is None:
            raise SourceError(f"{what} was answered by something that is no Kubernetes API server: check the address")
        return body

    def _at(self) -> str:
        return f"the Kubernetes API server {self._server.url}" if self._server else str(self._access)

    def _path(self, server: ApiServer) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._wanted or server.namespace}/leases"

    async def _connect(self, instead_of: ApiServer | None = None) -> tuple[ApiServer, httpx.AsyncClient]:
        """Return the server and a client for it. `instead_of`: read the credentials anew, these are refused."""
        if self._server is None or self._server is instead_of:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
                self._reading.add_done_callback(_note_failure)
            # A caller that gives up waiting leaves it running, for the others and for the next request.
            await asyncio.shield(self._reading)
        if self._server is None or self._client is None:
            raise SourceUnavailableError(f"{self._access}: it was closed")
        return self._server, self._client

    async def _read(self) -> None:
        server = await read(self._access)
        if self._client is None or server.connection != self._connection:
            if self._client is not None:
                # Requests may be under way on it. Certificates change rarely: it is closed with the source.
                self._retired.append(self._client)
            self._client, self._connection = server.client(), server.connection
        self._server = server


def _note_failure(task: asyncio.Task[None]) -> None:
    # Who has gone does not ask what came of it, and who comes next begins anew: asyncio is not to complain.
    if not task.cancelled():
        task.exception()


def _sni(server: ApiServer) -> dict[str, str]:
    name = server.configuration.tls_server_name
    return {"sni_hostname": name} if name else {}


def _json(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _message(answer: httpx.Response) -> str:
    body = _json(answer)
    return str((body or {}).get("message") or answer.reason_phrase or "no reason given")
