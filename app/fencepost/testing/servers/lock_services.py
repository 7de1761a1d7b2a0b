"""Redis, etcd and ZooKeeper, each one server on free ports; MissingServerError says how to install one that is not."""

import functools
import http.client
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencepost.testing.servers.gateway import ask
from fencepost.testing.servers.processes import free_port
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
"""


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


def redis(directory: Path) -> LockServiceServer:
    """Give a Redis that loses no acknowledged write (appendfsync always)."""
    program = _program("redis-server", "redis-server")
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [
        *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
        *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
    ]
    ready = functools.partial(_says, port, b"PING\r\n", b"+PONG")
    return LockServiceServer("redis", f"redis://127.0.0.1:{port}/0", Server(command, directory / "redis.log", ready))


def etcd(directory: Path) -> LockServiceServer:
    """Give one node of etcd with a minimum TTL of one second: one and a half election timeouts, in whole seconds."""
    program = _program("etcd", "etcd-server")
    directory.mkdir(parents=True, exist_ok=True)
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    mine = f"http://127.0.0.1:{port}"
    command = [
        *(program, "--name", "n0", "--data-dir", str(directory / "data")),
        *("--heartbeat-interval", "50", "--election-timeout", "250"),
        *("--listen-client-urls", mine, "--advertise-client-urls", mine),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"n0={peers}"),
    ]
    ready = functools.partial(_is_healthy, port)
    return LockServiceServer("etcd", f"etcd://127.0.0.1:{port}", Server(command, directory / "etcd.log", ready))


def zookeeper(directory: Path) -> LockServiceServer:
    """Give one ZooKeeper, with ticks so short that sessions end within two seconds."""
    java = _program("java", "default-jre-headless")
    if not JAR.exists():
        raise MissingServerError(f"no {JAR}: apt-get install libzookeeper-java")
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = directory / "zoo.cfg"
    configuration.write_text(_ZOO_CFG.format(data=data, port=port))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = [java, "-Xmx128m", "-cp", str(JAR), main, str(configuration)]
    ready = functools.partial(_says, port, b"srvr", b"Mode: ")
    url = f"zookeeper://127.0.0.1:{port}?session_timeout_s=2"
    return LockServiceServer("zookeeper", url, Server(command, directory / "zookeeper.log", ready))


LOCK_SERVICES: Final[dict[str, Callable[[Path], LockServiceServer]]] = {
    "redis": redis,
    "etcd": etcd,
    "zookeeper": zookeeper,
}
"""Lock services by name: each makes its server in a directory; MissingServerError where it is not installed."""


def _program(name: str, package: str) -> str:
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


def _is_healthy(port: int) -> bool:
    with suppress(OSError, http.client.HTTPException):
        status, body = ask("127.0.0.1", port, "/health", timeout=1)
        return status == http.HTTPStatus.OK and isinstance(body, dict) and body.get("health") == "true"
    return False
