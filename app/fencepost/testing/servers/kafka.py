"""Real Kafka brokers: KRaft nodes that are broker and controller in one, on free ports and in directories of their own.

Kafka is no package of Debian's: `.ci/kafka-jars` in the clone of Fencepost fetches its jars into a cache, where they
are found.
"""

import functools
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fencepost.testing.servers.lock_services import MissingServerError
from fencepost.testing.servers.processes import PATIENCE, free_port, listens, wait_until
from fencepost.testing.servers.server import Server, ServerError, Started, cache, made_once

VERSION: Final = "4.1.0"
_MADE_WITHIN: Final = 2 * PATIENCE
_LEVELS: Final = "bootstrap.checkpoint"
_CLASSES: Final = "classes.jsa"
_JVM: Final = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""For a start within seconds: the compiler's higher levels pay off only later, and verifying the classes of the jars is
a fifth of a start.
"""
# Short waits where Kafka's own are for networks: a group's first member waits for no others, a broker that died is
# noticed within two seconds.
_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "log.segment.delete.delay.ms": "0",
    "file.delete.delay.ms": "0",
}


def jars() -> Path:
    """Return the directory of Kafka's jars. MissingServerError where they are not, or there is no Java."""
    if shutil.which("java") is None:
        raise MissingServerError("no java: apt-get install default-jre-headless")
    found = Path(os.environ.get("FENCEPOST_KAFKA_JARS") or cache() / f"kafka-{VERSION}")
    if not found.is_dir():
        raise MissingServerError("no Kafka: .ci/kafka-jars fetches it with mvn: apt-get install maven")
    return found


def _java(*arguments: str) -> list[str]:
    # In one order, whatever that of the directory is: the classes that are kept are those of one class path.
    return ["java", *_JVM, "-cp", ":".join(map(str, sorted(jars().glob("*.jar")))), *arguments]


class Broker:
    """One node. `port`: where clients reach it; the same after a restart."""

    def __init__(self, node: int, directory: Path, port: int, heap_mb: int) -> None:
        self.node, self.directory, self.port = node, directory, port
        self.data = directory / "data"
        self.properties = directory / "server.properties"
        self._heap = f"-Xmx{heap_mb}m"
        self.server = self.server_with(f"-XX:SharedArchiveFile={cache() / _name() / _CLASSES}")

    def server_with(self, option: str) -> Server:
        """Make its server, which will start with this option of the JVM."""
        command = _java(self._heap, option, "kafka.Kafka", str(self.properties))
        return Server(command, self.directory / "kafka.log", lambda: listens(self.port))

    def make_data(self, cluster_id: str) -> None:
        """Make its empty data directory, without running Kafka's tool for each node."""
        made = made_once(_name(), _make)
        self.data.mkdir()
        shutil.copyfile(made / _LEVELS, self.data / _LEVELS)
        own = {"version": "1", "cluster.id": cluster_id, "node.id": str(self.node), "directory.id": _new_id()}
        (self.data / "meta.properties").write_text(_lines(own))


def _new_id() -> str:
    """Give a new id, as Kafka writes them. A - at its beginning would be taken for an option."""
    return urlsafe_b64encode(b"K" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def _lines(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


@functools.cache
def _name() -> str:
    """What is made once has this name in the cache: it belongs to this Java, these jars and these options."""
    java = Path(shutil.which("java") or "").resolve()
    files = [f"{each} {each.stat().st_mtime_ns}" for each in (java, *sorted(jars().iterdir()))]
    stamp = "\n".join([*files, *_JVM])
    return f"kafka-start-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"


def _make(new: Path) -> None:
    """Run Kafka's tool and a broker, and keep what makes each later start short: the levels of this Kafka's features
    as the tool writes them, and the broker's classes as the JVM writes them when it is ended.
    """
    new.mkdir()
    with tempfile.TemporaryDirectory(prefix="fencepost-kafka-") as directory:
        broker = Kafka(Path(directory)).brokers[0]
        arguments = ("format", f"--cluster-id={_new_id()}", "-c", str(broker.properties))
        command = _java("-Xmx64m", "kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MADE_WITHIN, check=False)  # noqa: S603 - no shell
        if done.returncode != 0:
            raise ServerError(f"Kafka's data directory cannot be made: {done.stdout}{done.stderr}")
        shutil.copyfile(broker.data / _LEVELS, new / _LEVELS)
        try:
            _keep_classes(broker, new / _CLASSES)
        except ServerError as error:
            warnings.warn(f"brokers start slowly, for this Java keeps no classes: {error}", stacklevel=2)


def _keep_classes(broker: Broker, file: Path) -> None:
    with broker.server_with(f"-XX:ArchiveClassesAtExit={file}") as server:
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not server.running, within=_MADE_WITHIN, what="the end of a broker")
        if not file.exists():
            raise ServerError(server.log_end())


class Kafka(Started):
    """A cluster of `nodes` brokers; a context manager that starts and ends it. `more`: properties of all brokers;
    `{port}` in a value of `listeners` is not replaced: give `client_listener` to have another than PLAINTEXT.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        more: Mapping[str, str] | None = None,
        client_listener: str = "PLAINTEXT",
        heap_mb: int = 256,
    ) -> None:
        jars()
        self.brokers = [Broker(node, directory / f"node-{node}", free_port(), heap_mb) for node in range(1, nodes + 1)]
        self._controllers = {broker.node: free_port() for broker in self.brokers}
        self._listener = client_listener
        for broker in self.brokers:
            broker.directory.mkdir(parents=True)
            broker.properties.write_text(self._properties(broker, more or {}))

    @property
    def bootstrap(self) -> str:
        """Hosts and ports as clients take them."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def start(self) -> None:
        """Make the data directories, and start all brokers; returns once each accepts connections."""
        cluster_id = _new_id()
        for broker in self.brokers:
            broker.make_data(cluster_id)
            broker.server.start()
        for broker in self.brokers:
            broker.server.wait()

    def stop(self) -> None:
        """End all brokers. With SIGKILL: nothing of theirs is needed any more, and leaving in order takes seconds."""
        for broker in self.brokers:
            broker.server.crash()

    def _properties(self, broker: Broker, more: Mapping[str, str]) -> str:
        listener, copies = self._listener, str(min(3, len(self.brokers)))
        voters = (f"{node}@127.0.0.1:{port}" for node, port in self._controllers.items())
        found = {
            **_PROPERTIES,
            "node.id": str(broker.node),
            "controller.quorum.voters": ",".join(voters),
            "listeners": (
                f"{listener}://127.0.0.1:{broker.port},CONTROLLER://127.0.0.1:{self._controllers[broker.node]}"
            ),
            "advertised.listeners": f"{listener}://127.0.0.1:{broker.port}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{listener}:{listener}",
            "inter.broker.listener.name": listener,
            "log.dirs": str(broker.data),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            **more,
        }
        return _lines(found)
