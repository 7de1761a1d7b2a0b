"""Small servers and processes of tests: keys, certificates, commands."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost.cli.main import main
from fencepost.testing.servers.lock_services import MissingServerError
from fencepost.testing.servers.processes import PATIENCE, alive, eventually

# Servers that may not be installed.


@contextmanager
def or_skipped() -> Iterator[None]:
    """Skip the test where a server is not installed."""
    try:
        yield
    except MissingServerError as missing:
        pytest.skip(str(missing))


# Finding out, through /proc, which processes of a test are alive.


async def until(condition: Callable[[], object], *, within: float = PATIENCE, what: str = "the condition") -> None:
    """Return once it is true; for what this process shows, where `eventually` asks others. TimeoutError, as there."""

    async def is_true() -> bool:
        return bool(condition())

    await eventually(is_true, within=within, what=what)


async def exit_code(process: "subprocess.Popen[str]", *, within: float, what: str) -> int:
    """Return the exit code of a process once it has ended, -n for a death by signal n."""
    await until(lambda: process.poll() is not None, within=within, what=f"the end of {what}")
    return process.returncode


async def all_gone(pids: list[int], *, within: float = PATIENCE) -> None:
    """Return once none of these processes runs; TimeoutError if one still does after `within` seconds."""
    await until(lambda: not any(alive(pid) for pid in pids), within=within, what=f"the end of processes {pids}")


def established(port: int, pids: list[int]) -> dict[int, set[int]]:
    """Return which connections to our `port` on 127.0.0.1 each process holds, by the client's port."""
    clients = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == "01" and int(local.partition(":")[2], 16) == port:
            clients[f"socket:[{inode}]"] = int(remote.partition(":")[2], 16)
    return {pid: {clients[name] for name in _open_files(pid) if name in clients} for pid in pids}


def _open_files(pid: int) -> list[str]:
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(str(file.readlink()))
    return names


# Commands of `fencepost`, run in this process.


async def command(*arguments: str, database: str) -> Result:
    """Run `fencepost ARGUMENTS` on this database."""
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


async def complaints(database: str) -> list[str]:
    """Give the lines of `fencepost doctor` that are not ok. With an error among them it exits with 1."""
    found = await command("doctor", database=database)
    lines = [line for line in found.output.splitlines() if not line.startswith("ok ")]
    assert found.exit_code == (1 if any(line.startswith("ERROR") for line in lines) else 0), found.output
    return lines


# Certificates that a test makes for its own servers.


def self_signed(directory: Path) -> Path:
    """Make a certificate for 127.0.0.1 that signs itself, so that it is its own authority; its key is beside it, as
    key.pem. Skips where openssl is not installed.
    """
    program = shutil.which("openssl") or pytest.skip("no openssl: apt-get install openssl")
    directory.mkdir(exist_ok=True)
    certificate = directory / "certificate.pem"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
            *("-keyout", str(directory / "key.pem"), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


# A real HTTP server that gives a JWKS, or whatever else a test has it send.


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclass
class JwksServer:
    """`says`: what each request gets. While `gate` is clear, requests wait."""

    says: bytes
    url: str = ""
    asked: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, document: Mapping[str, Any]) -> None:
        self.says = answer(json.dumps(document).encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            self.waiting.set()
            await self.gate.wait()
            writer.write(self.says)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def jwks_server(document: Mapping[str, Any], tls: ssl.SSLContext | None = None) -> AsyncIterator[JwksServer]:
    """Run one on a free port of loopback; with `tls` by https."""
    there = JwksServer(b"")
    there.give(document)
    there.gate.set()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0, ssl=tls)
    there.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
    try:
        yield there
    finally:
        there.gate.set()
        server.close()
        await server.wait_closed()
