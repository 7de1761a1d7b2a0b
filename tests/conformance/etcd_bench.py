"""etcd, one node or a cluster, with a minimum TTL of one second. Operators' commands go by etcdctl."""

import asyncio
import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.servers import or_skipped

from fencepost.testing.servers.lock_services import etcd_nodes, is_healthy, program_of
from fencepost.testing.servers.processes import eventually, free_port

PREFIX = "fencepost/"


class EtcdBench:
    """A cluster of `ports` nodes, each one's client port and peer port."""

    name = "etcd"
    dsn = ""

    def __init__(
        self, directory: Path, ports: Sequence[tuple[int, int]], extra: Sequence[str], tls: tuple[Path, Path] | None
    ) -> None:
        self.endpoints = [f"127.0.0.1:{client}" for client, _ in ports]
        self.url = f"{'etcd' if tls is None else 'etcds'}://{','.join(self.endpoints)}"
        self.nodes = etcd_nodes(directory, ports, *extra, tls=tls)
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

    async def crash(self) -> None:
        for node in self.nodes:
            node.crash()

    async def restart(self) -> None:
        for node in self.nodes:
            node.start()  # by this thread: a server ends with the one that started it
        for node in self.nodes:
            await node.serves()

    async def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    async def resume(self) -> None:
        for node in self.nodes:
            node.resume()
        for node in self.nodes:
            await node.serves()

    async def spoil(self, lock: str) -> None:
        await self.ctl("put", f"{self.lock_name(lock)}/somebody", "else")

    async def waiting(self, lock: str) -> int:
        return max(len(await self.keys(lock)) - 1, 0)

    @staticmethod
    def lock_name(lock: str) -> str:
        """What `etcdctl lock` calls a lock of Fencepost's, as in docs/sources/etcd.md."""
        return PREFIX + lock.replace("%", "%25").replace("/", "%2F")

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
def running(
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
