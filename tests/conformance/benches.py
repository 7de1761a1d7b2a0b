"""What the conformance suite needs of each lock service: its real server, and ways to harm it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import httpx
import redis.asyncio
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry
from tests.support.interleave import Connection, connection_to
from tests.support.postgres import server_bin_dir
from tests.support.servers import all_gone, or_skipped

from fencepost.server.locks.advisory import AdvisorySource, from_url
from fencepost.server.locks.kubernetes_api import hashed_name
from fencepost.server.locks.source import Grant, Holder, Source, SourceContext, make
from fencepost.server.locks.zookeeper import parent_of
from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.kubernetes import ADMIN, NAMESPACE, Cluster
from fencepost.testing.servers.lock_services import etcd_nodes, is_healthy, program_of, zookeeper
from fencepost.testing.servers.lock_services import redis as redis_service
from fencepost.testing.servers.processes import descendants, eventually, free_port, new_directory, remove_directory
from fencepost.testing.servers.server import Server


class Harmed(Protocol):
    """What a test does to a server."""

    async def crash(self) -> None:
        """SIGKILL it, all of its nodes."""
        ...

    async def restart(self) -> None:
        """Start it again on the same data, and return once it answers."""
        ...

    async def pause(self) -> None:
        """SIGSTOP it: connections stay, answers do not come."""
        ...

    async def resume(self) -> None:
        """SIGCONT it, and return once it answers."""
        ...


class Bench(Harmed, Protocol):
    """One service, running. A class for each, and a line in BENCHES."""

    name: str
    url: str
    dsn: str
    """The gateway's PostgreSQL, for sources that need one; empty otherwise."""

    async def spoil(self, lock: str) -> None:
        """Put something of another program's where the lock's state would be."""
        ...

    async def waiting(self, lock: str) -> int:
        """Count who waits for the lock, looking into the service. Only asked where the source is fair."""
        ...


async def opened(bench: Bench) -> Source:
    """Open a source on the bench's service; the caller closes it."""
    source = make(bench.url, SourceContext(bench.name, bench.dsn))
    await source.open()
    return source


# Redis, for locks in one server (redis) and in a majority of five (redlock).


@contextmanager
def redis_server(directory: Path, port: int, *settings: str) -> Iterator[Server]:
    """Run a Redis server; skips where it is not installed. With no settings it is one that a doctor finds healthy."""
    with or_skipped():
        server = redis_service(directory, *settings, port=port).server
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.crash()  # it would refuse to be stopped while it writes the first file of a journal


async def redis_command(port: int, *words: str | int) -> Any:
    client: Any = redis.asyncio.Redis(port=port)
    async with client:
        return await client.execute_command(*words)


@asynccontextmanager
async def redis_has(port: int, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """Have other settings for a while."""
    before = {name: (await redis_command(port, "CONFIG GET", name))[name] for name in settings}
    try:
        for name, value in settings.items():
            await redis_command(port, "CONFIG SET", name, value)
        yield
    finally:
        for name, value in before.items():
            await redis_command(port, "CONFIG SET", name, value)


class OfServers:
    """What is done to a service is done to all of its servers."""

    dsn = ""
    servers: Sequence[Server]

    async def crash(self) -> None:
        for server in self.servers:
            server.crash()

    async def restart(self) -> None:
        for server in self.servers:
            server.start()  # by this thread: a server ends with the one that started it
        for server in self.servers:
            await server.serves()

    async def pause(self) -> None:
        for server in self.servers:
            server.pause()

    async def resume(self) -> None:
        for server in self.servers:
            server.resume()
        for server in self.servers:
            await server.serves()


class RedisBench(OfServers):
    """One or several servers; what is done is done to all of them."""

    def __init__(self, name: str, url: str, servers: Sequence[Server], ports: Sequence[int], keys: str) -> None:
        self.name, self.url, self.servers, self.ports, self._keys = name, url, servers, ports, keys

    async def resume(self) -> None:
        for server in self.servers:
            server.resume()
        for port in self.ports:
            await redis_command(port, "PING")

    async def spoil(self, lock: str) -> None:
        for port in self.ports:
            await redis_command(port, "RPUSH", f"{self._keys}{lock}", "not a lock")

    async def waiting(self, lock: str) -> int:
        raise NotImplementedError("no client queues in Redis")


@contextmanager
def running_redis(directory: Path) -> Iterator[RedisBench]:
    port = free_port()
    with redis_server(directory, port) as server:
        yield RedisBench("redis", f"redis://127.0.0.1:{port}/0", [server], [port], "fencepost:lock:")


@contextmanager
def running_redis_servers(directory: Path, count: int) -> Iterator[tuple[list[Server], list[int]]]:
    """Run several servers that know nothing of each other."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        yield (
            [stack.enter_context(redis_server(directory / str(number), port)) for number, port in enumerate(ports)],
            ports,
        )


NODE_TIMEOUT_MS = 200
"""More than in production: five servers and the tests share two cores."""
LONGEST_NODE_MS = 1000
"""The longest that a node can be waited for, and so for the tests that are not about how long."""


def redlock_url(ports: Sequence[int], node_timeout_ms: int = NODE_TIMEOUT_MS) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redlock://{hosts}/0?node_timeout_ms={node_timeout_ms}"


@contextmanager
def running_redlock(directory: Path) -> Iterator[RedisBench]:
    with running_redis_servers(directory, 5) as (servers, ports):
        yield RedisBench("redlock", redlock_url(ports), servers, ports, "fencepost:redlock:")


# etcd, one node or a cluster, with a minimum TTL of one second. Operators' commands go by etcdctl.

ETCD_PREFIX = "fencepost/"


class EtcdBench(OfServers):
    """A cluster of `ports` nodes, each one's client port and peer port."""

    name = "etcd"

    def __init__(
        self, directory: Path, ports: Sequence[tuple[int, int]], extra: Sequence[str], tls: tuple[Path, Path] | None
    ) -> None:
        self.endpoints = [f"127.0.0.1:{client}" for client, _ in ports]
        self.url = f"{'etcd' if tls is None else 'etcds'}://{','.join(self.endpoints)}"
        self.servers = self.nodes = etcd_nodes(directory, ports, *extra, tls=tls)
        self._peers = [f"http://127.0.0.1:{peer}" for _, peer in ports]
        self._cluster = ("--initial-cluster", ",".join(f"n{n}={peer}" for n, peer in enumerate(self._peers)))

    def identity(self, n: int) -> Sequence[str]:
        """Return which node it is, for `etcdctl snapshot restore`."""
        return ("--name", f"n{n}", "--initial-advertise-peer-urls", self._peers[n], *self._cluster)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()

    def stop(self) -> None:
        for node in self.nodes:
            node.crash()

    async def spoil(self, lock: str) -> None:
        await self.ctl("put", f"{self.lock_name(lock)}/somebody", "else")

    async def waiting(self, lock: str) -> int:
        return max(len(await self.keys(lock)) - 1, 0)

    @staticmethod
    def lock_name(lock: str) -> str:
        """What `etcdctl lock` calls a lock of Fencepost's, as in docs/sources/etcd.md."""
        return ETCD_PREFIX + lock.replace("%", "%25").replace("/", "%2F")

    async def keys(self, lock: str) -> list[dict[str, int]]:
        """List the keys of a lock, oldest first."""
        folder = f"{self.lock_name(lock)}/".encode()
        asked = {"key": b64encode(folder).decode(), "range_end": b64encode(folder[:-1] + b"0").decode()}
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://{self.endpoints[0]}/v3/kv/range"
            answer = (await client.post(url, json={**asked, "sort_target": "CREATE"})).json()
        numbers = ("create_revision", "mod_revision", "lease")
        return [{number: int(key.get(number, 0)) for number in numbers} for key in answer.get("kvs", ())]

    async def ctl(self, *command: str, endpoints: Sequence[str] | None = None) -> dict[str, Any]:
        """Run etcdctl and return what it prints, as JSON."""
        process = await asyncio.create_subprocess_exec(
            *("etcdctl", f"--endpoints={','.join(endpoints or self.endpoints)}", "--write-out=json", *command),
            env={"ETCDCTL_API": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        answered, wrong = await process.communicate()
        assert process.returncode == 0, f"etcdctl {command}: {wrong.decode()}"
        answer: dict[str, Any] = json.loads(answered) if answered.startswith(b"{") else {}  # not every command has JSON
        return answer

    async def leader(self) -> int:
        """Find out which node leads, once one does."""

        async def known() -> list[int] | None:
            for n, endpoint in enumerate(self.endpoints):
                if not is_healthy(int(endpoint.rpartition(":")[2])):
                    continue
                async with httpx.AsyncClient(trust_env=False, timeout=1) as client:
                    status = (await client.post(f"http://{endpoint}/v3/maintenance/status", json={})).json()
                if status.get("leader", "") == status["header"]["member_id"]:
                    return [n]
            return None

        return (await eventually(known, what="a leader"))[0]


@contextmanager
def running_etcd(
    directory: Path, nodes: int = 1, extra: Sequence[str] = (), tls: tuple[Path, Path] | None = None
) -> Iterator[EtcdBench]:
    """Run that many nodes. `extra`: more options of each. `tls`: a certificate and its key,
    for both sides.
    """
    with or_skipped():
        program_of("etcdctl", "etcd-client")
        bench = EtcdBench(directory, [(free_port(), free_port()) for _ in range(nodes)], extra, tls)
    try:
        bench.start()
        yield bench
    finally:
        bench.stop()


# ZooKeeper: one server, with ticks so short that sessions end within two seconds.


def zookeeper_says(port: int, command: str) -> str:
    """Ask a server with one of its commands of four letters; nothing where it does not answer."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
        asked.sendall(command.encode())
        return b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    return ""


@contextmanager
def zookeeper_client(port: int, **how: Any) -> Iterator[Any]:
    """Connect as another program would; kazoo has no types."""
    connected = KazooClient(f"127.0.0.1:{port}", connection_retry=KazooRetry(max_tries=-1, max_delay=0.5), **how)
    connected.start(timeout=30)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()


class ZooKeeperBench(OfServers):
    name = "zookeeper"

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.port = free_port()
        service = zookeeper(directory, port=self.port)
        self.url, self.server = service.url, service.server
        self.servers = [self.server]

    async def crash(self) -> None:
        await asyncio.to_thread(self.server.crash)

    async def spoil(self, lock: str) -> None:
        def spoil() -> None:
            with zookeeper_client(self.port) as other:
                other.create(f"{parent_of('/fencepost', lock)}/config", b"theirs", makepath=True)

        await asyncio.to_thread(spoil)

    async def children(self, lock: str) -> list[str]:
        """Look who has the lock and who waits, in no order."""

        def look() -> list[str]:
            with zookeeper_client(self.port) as other, suppress(NoNodeError):
                return list(other.get_children(parent_of("/fencepost", lock)))
            return []

        return await asyncio.to_thread(look)

    async def waiting(self, lock: str) -> int:
        return max(0, len(await self.children(lock)) - 1)


@contextmanager
def running_zookeeper(directory: Path) -> Iterator[ZooKeeperBench]:
    with or_skipped():
        bench = ZooKeeperBench(directory)
    bench.server.start()
    try:
        bench.server.wait()
        yield bench
    finally:
        bench.server.stop()


@contextmanager
def running_ensemble(directory: Path) -> Iterator[dict[int, Server]]:
    """Run three ZooKeeper servers; gives them by client port."""
    ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
    members = [f"server.{n}=127.0.0.1:{peer}:{vote}" for n, (_, peer, vote) in enumerate(ports, 1)]
    more = "\n".join(("initLimit=50", "syncLimit=25", *members))
    with ExitStack() as stack:
        servers = {}
        for n, (port, _, _) in enumerate(ports, 1):
            with or_skipped():
                servers[port] = zookeeper(directory / str(n), more, port=port).server
            (directory / str(n) / "data" / "myid").write_text(str(n))
            servers[port].start()
            stack.callback(servers[port].stop)
        for one in servers.values():
            one.wait()
        yield servers


def leading(ensemble: dict[int, Server]) -> int:
    (leader,) = [port for port in ensemble if "Mode: leader" in zookeeper_says(port, "srvr")]
    return leader


# A PostgreSQL of its own, for `postgres-advisory`; the source's role is an ordinary one.

ROLE = "locker"
PASSWORD = "p%40ss"

ADVISORY_KEY = """
database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND locktype = 'advisory' AND objsubid = 1
AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0)"""


class AdvisoryBench:
    name = "advisory"

    def __init__(self, server: PostgresServer, pgdata: Path, port: int) -> None:
        self.server, self._pgdata, self.port = server, pgdata, port
        self._stopped: list[int] = []
        self.url = f"postgres-advisory://{ROLE}:{PASSWORD}@127.0.0.1:{port}/locks"
        self.dsn = self.url.replace("postgres-advisory", "postgresql")

    async def prepare(self) -> None:
        async with connection_to(self.server.url) as admin:
            await admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'p@ss'")
            await admin.execute(f"CREATE DATABASE locks OWNER {ROLE}")

    async def connect(self) -> Connection:
        """Connect as another program of the same role; the caller closes it."""
        return await asyncpg.connect(self.dsn)

    async def crash(self) -> None:
        pids = self._pids()
        for pid in pids:
            with suppress(ProcessLookupError):  # some end by themselves when the postmaster does
                os.kill(pid, signal.SIGKILL)
        self.server.stop()
        await all_gone(pids)

    async def restart(self) -> None:
        self.server.start()

    async def pause(self) -> None:
        self._stopped = self._pids()
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)

    async def resume(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        await eventually(self._answers, what="PostgreSQL's answer")

    async def spoil(self, lock: str) -> None:
        """Leave the lock to a prepared transaction: no session holds it, and no waiting helps."""
        other = await self.connect()
        await other.execute("BEGIN")
        await other.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
        await other.execute(f"PREPARE TRANSACTION '{lock}'")
        await other.close()

    async def waiting(self, lock: str) -> int:
        return await self.asked(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {ADVISORY_KEY}", lock)

    async def asked(self, question: str, *arguments: object) -> int:
        other = await self.connect()
        try:
            return int(await other.fetchval(question, *arguments))
        finally:
            await other.close()

    async def _answers(self) -> bool:
        return await self.asked("SELECT 1") == 1

    def _pids(self) -> list[int]:
        postmaster = int((self._pgdata / "postmaster.pid").read_text().split()[0])
        return [postmaster, *descendants(postmaster)]


def sourced(url: str, options: str = "", dsn: str = "") -> AdvisorySource:
    """Make a source with options of its own; the caller closes it."""
    return from_url(url + options, SourceContext("adv", dsn))


async def taking(source: Source, lock: str, *, wait_s: float = 0) -> Grant | Holder:
    return await source.acquire(lock, owner="somebody", ttl_ms=60_000, tokens=1, wait_s=wait_s)


def pid_of(grant: Grant) -> int:
    return int(grant.handle.partition(":")[0])


@contextmanager
def running_advisory(directory: Path) -> Iterator[AdvisoryBench]:  # noqa: ARG001 - PostgreSQL's user may not enter it
    """Run PostgreSQL until the block ends."""
    home, port = new_directory(), free_port()
    # Nothing is written to it but a prepared transaction.
    server = PostgresServer(
        bin_dir=server_bin_dir(os.environ.get("FENCEPOST_ADVISORY_POSTGRES", "embedded-18")),
        data_dir=home / "data",
        port=port,
        options={"shared_buffers": "16MB", "max_prepared_transactions": "10"},
    )
    try:
        with server:
            bench = AdvisoryBench(server, home / "data" / "pgdata", port)
            asyncio.run(bench.prepare())
            yield bench
    finally:
        remove_directory(home)


# A real kube-apiserver, built by `.ci/kube-apiserver`, and Leases of it.


@contextmanager
def kube_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster; skips where no kube-apiserver is installed."""
    with or_skipped():
        made = Cluster(directory)
    with made:
        yield made


KUBE_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class KubernetesBench(OfServers):
    """See Bench. etcd is never harmed: it is not who a source talks to."""

    name = "kubernetes"

    def __init__(self, running: Cluster) -> None:
        self.cluster, self.servers = running, [running.apiserver]
        self.url = f"kubernetes://kubeconfig?file={running.kubeconfig('admin', {'token': ADMIN})}"

    async def spoil(self, lock: str) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": hashed_name(lock)},
            "spec": {"holderIdentity": "another program's controller"},
        }  # fmt: skip
        assert self.cluster.ask("POST", KUBE_LEASES, body).is_success

    async def waiting(self, lock: str) -> int:
        raise NotImplementedError(f"no client queues for {lock}: the source is not fair")


@contextmanager
def running_kubernetes(directory: Path) -> Iterator[KubernetesBench]:
    """Run a kube-apiserver; skips where it has not been built."""
    with kube_cluster(directory) as made:
        yield KubernetesBench(made)


BENCHES: dict[str, Callable[[Path], AbstractContextManager[Bench]]] = {
    "redis": running_redis, "redlock": running_redlock, "etcd": running_etcd, "zookeeper": running_zookeeper,
    "advisory": running_advisory, "kubernetes": running_kubernetes,
}  # fmt: skip
"""The sources that are checked, and what runs the service of each in a directory."""
