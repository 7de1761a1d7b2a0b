"""`python -m tests.robustness.attacks.unsent`: answers that nobody takes, and what they cost the gateway in memory.

It starts a gateway with one worker on an embedded PostgreSQL, on loopback only, and ends it. Each attack comes from
127.0.0.1 and lasts some seconds; meanwhile a caller at 127.0.0.2 goes on asking.

- pipeline: 60 connections pipeline 256 kB of requests each, and take 1 kB of the answers four times a second.
- readers: 40 connections ask for 57 MB each, and take nothing.
- verdicts: 150 connections send batches whose verdicts have 60 MB each, and take nothing.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import click
from tests.support.gateways import Gateway, serving_process

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import server_directory

_MB = 1 << 20
_TABLES = """
CREATE TABLE large (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO large SELECT n, repeat('x', 5700) FROM generate_series(1, 10000) n;
CREATE TABLE wide (id int PRIMARY KEY, note text NOT NULL);
INSERT INTO wide SELECT n, repeat('x', 1000000) FROM generate_series(0, 149) n;"""


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _batch(row: int) -> bytes:
    lines = b"".join(b'{"claim": "wide/%d", "token": "%d"}\n' % (row, token) for token in range(1, 61))
    head = "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: "
    return head.encode() + b"%d\r\n\r\n" % len(lines) + lines


_ATTACKS: dict[str, tuple[int, Callable[[int], bytes], int]] = {
    "pipeline": (60, lambda _: _get("/x") * (256_000 // len(_get("/x"))), 1024),
    "readers": (40, lambda _: _get("/v1/data/large"), 0),
    "verdicts": (150, _batch, 0),
}
"""Connections, what the one of a number sends, bytes that it takes each time."""


def memory(pid: int) -> dict[str, int]:
    """Give a process's resident memory in MB, and the most that it was since `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: int(rest.split()[0]) // 1024
        for name, _, rest in (each.partition(":") for each in lines)
        if name in ("VmRSS", "VmHWM")
    }


def forget_peak(pid: int) -> None:
    """Have the peak counted anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def _attack(where: tuple[str, int], sends: bytes, takes: int, seconds: int) -> bool:
    """Be one connection; tell whether the gateway ended it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        await loop.sock_connect(own, where)
        sending = asyncio.create_task(loop.sock_sendall(own, sends))
        try:
            for _ in range(seconds * 4):
                await asyncio.sleep(0.25)
                if takes and not await asyncio.wait_for(loop.sock_recv(own, takes), 30):
                    return True
            own.send(b"\r\n")
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
        return False


async def _other(where: tuple[str, int], path: str) -> str:
    """Ask as another caller, and take the answer at once."""
    reader, writer = await asyncio.open_connection(*where, local_addr=("127.0.0.2", 0))
    try:
        writer.write(_get(path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await asyncio.wait_for(reader.read(-1), 30)
        return f"{path} {answer[9:12].decode()} {len(answer):,} bytes"
    except (OSError, TimeoutError) as error:
        return f"{path} {type(error).__name__}"
    finally:
        writer.transport.abort()


async def measure(gateway: Gateway, name: str, seconds: int = 15) -> None:
    """Make one attack, and print what it cost."""
    connections, sends, takes = _ATTACKS[name]
    url, pid = urlsplit(gateway.url), gateway.process.pid
    where = (url.hostname or "", url.port or 0)
    click.echo(await _other(where, "/v1/data/large"))
    forget_peak(pid)
    before = memory(pid)["VmRSS"]
    attacking = [asyncio.create_task(_attack(where, sends(n), takes, seconds)) for n in range(connections)]
    await asyncio.sleep(seconds / 2)
    others = [await _other(where, path) for path in ("/x", "/v1/data/orders/order-123", "/v1/data/large")]
    ended = sum(await asyncio.gather(*attacking))
    at_end = memory(pid)
    await asyncio.sleep(3)
    after = memory(pid)["VmRSS"]
    click.echo(
        f"{name}: {connections} connections, {ended} ended by the gateway; memory {before} MB before,"
        f" {at_end['VmHWM']} at most, {at_end['VmRSS']} at the end, {after} afterwards;"
        f" another caller: {'; '.join(others)}"
    )


async def main() -> None:
    """Make all of them."""
    for name in sys.argv[1:] or _ATTACKS:
        with server_directory() as directory:
            async with serving_process(directory, "--serve-unprotected", "--log-level", "warning") as gateway:
                connection = await asyncpg.connect((directory / "data" / "url").read_text().strip())
                await connection.execute(_TABLES)
                await protect(connection, "wide")
                await connection.execute("NOTIFY fencepost, 'reload'")
                await connection.close()
                await measure(gateway, name)
                click.echo((directory / "stderr").read_text()[-600:])


if __name__ == "__main__":
    asyncio.run(main())
