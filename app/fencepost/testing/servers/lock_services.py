"""Redis, etcd and ZooKeeper, each one server on free ports; MissingServerError says how to install one that is not."""

import functools
import http.client
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost.testing.servers.gateway import ask
from fencepost.testing.servers.processes import free_port, listens
from fencepost.testing.servers.server import Server, ServerError

JAR: Final = Path("/usr/share/java/zookeeper.jar")
_ZOO_CFG: Final = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=200
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=*
{more}
"""
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
"""Settings of a Redis that loses no acknowledged write."""


class MissingServerError(ServerError):
    """A server is not installed. The message says how to install it on Debian."""


@dataclass(frozen=True, slots=True)
class LockServiceServer:
    """A lock service: its process, not started yet, and its URL as `FENCEPOST_SOURCES` takes it."""

    name: str
    url: str
    server: Server


running_services: Final[dict[str, LockServiceServer]] = {}
"""Those that the fixture `lock_service` has started, by the names that the gateway has for them."""


def redis(directory: Path, *settings: str, port: int | None = None) -> LockServiceServer:
    """Give a Redis with these settings, or else one that loses no acknowledged write."""
    program = program_of("redis-server", "redis-server")
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *(settings or DURABLE)]
    ready = functools.partial(_says, port, b"PING\r\n", b"+PONG")
    return LockServiceServer("redis", f"redis://127.0.0.1:{port}/0", Server(command, directory / "redis.log", ready))


def etcd(directory: Path) -> LockServiceServer:
    """Give one node of etcd with a minimum TTL of one second: one and a half election timeouts, in whole seconds."""
    port = free_port()
    (node,) = etcd_nodes(directory, [(port, free_port())])
    return LockServiceServer("etcd", f"etcd://127.0.0.1:{port}", node)


def etcd_nodes(
    directory: Path, ports: Sequence[tuple[int, int]], *options: str, tls: tuple[Path, Path] | None = None
) -> list[Server]:
    """Give the nodes of a cluster: n0, n1, …, by each one's client port and peer port. `tls`: a certificate, which is
    its own authority, and its key, for clients and servers.
    """
    program = program_of("etcd", "etcd-server")
    directory.mkdir(parents=True, exist_ok=True)
    if tls is not None:
        certificate, key = map(str, tls)
        options += ("--cert-file", certificate, "--key-file", key)
        options += ("--client-cert-auth", "--trusted-ca-file", certificate)
    cluster = ",".join(f"n{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports))
    nodes = []
    for n, (client, peer) in enumerate(ports):
        mine, others = f"{'https' if tls else 'http'}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        command = [
            *(program, "--name", f"n{n}", "--data-dir", str(directory / f"n{n}")),
            *("--heartbeat-interval", "50", "--election-timeout", "250"),
            *("--listen-client-urls", mine, "--advertise-client-urls", mine),
            *("--listen-peer-urls", others, "--initial-advertise-peer-urls", others, "--initial-cluster", cluster),
            *options,
        ]
        ready = functools.partial(listens if tls else is_healthy, client)
        nodes.append(Server(command, directory / f"n{n}.log", ready))
    return nodes


def zookeeper(directory: Path, more: str = "", jvm: tuple[str, ...] = (), port: int | None = None) -> LockServiceServer:
    """Give one ZooKeeper, with ticks so short that sessions end within two seconds. `more`: lines of its configuration;
    `jvm`: options of Java.
    """
    java = program_of("java", "default-jre-headless")
    if not JAR.exists():
        raise MissingServerError(f"no {JAR}: apt-get install libzookeeper-java")
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    configuration = directory / "zoo.cfg"
    configuration.write_text(_ZOO_CFG.format(data=data, port=port, more=more))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = [java, "-Xmx128m", *jvm, "-cp", str(JAR), main, str(configuration)]
    ready = functools.partial(_says, port, b"srvr", b"Mode: ")
    url = f"zookeeper://127.0.0.1:{port}?session_timeout_s=2"
    return LockServiceServer("zookeeper", url, Server(command, directory / "zookeeper.log", ready))


LOCK_SERVICES: Final[dict[str, Callable[[Path], LockServiceServer]]] = {
    "redis": redis,
    "etcd": etcd,
    "zookeeper": zookeeper,
}
"""Lock services by name: each makes its server in a directory; MissingServerError where it is not installed."""


def program_of(name: str, package: str) -> str:
    """Find a program. MissingServerError where the package that has it is not installed."""
    found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin")
    if found is None:
        raise MissingServerError(f"no {name}: apt-get install {package}")
    return found


def _says(port: int, question: bytes, answer: bytes) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
        asked.sendall(question)
        asked.settimeout(1)
        got = b""
        while answer not in got and (more := asked.recv(65536)):
            got += more
        return answer in got
    return False


def is_healthy(port: int) -> bool:
    """Whether a node of etcd says that it can serve."""
    with suppress(OSError, http.client.HTTPException):
        status, body = ask("127.0.0.1", port, "/health", timeout=1)
        return status == http.HTTPStatus.OK and isinstance(body, dict) and body.get("health") == "true"
    return False
