"""Leases of one namespace, as the API server keeps them: read, create, update, watch.

An update carries the uid and the resourceVersion of what it changes, and the API server refuses it (409) once either
is another one: this is the compare-and-set that everything in source.py is made of.
"""

import asyncio
import math
from contextlib import suppress
from typing import Any, Final

import httpx

from fencepost.server.locks.kubernetes import access as kubernetes_access
from fencepost.server.locks.kubernetes.access import Access, ApiServer
from fencepost.server.locks.kubernetes.lease import LeaseObject, number
from fencepost.server.locks.source import REQUEST_TIMEOUT, SourceError, SourceUnavailableError

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
        """Name a Lease for people."""
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
        server = await kubernetes_access.read(self._access)
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
