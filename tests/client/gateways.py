"""`fencepost serve` as a process on a port that stays the same: killed, and started again."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.gateways import STARTS_WITHIN, launch, read_greeting
from tests.support.servers import all_gone

from fencepost.testing.servers.processes import PATIENCE, descendants

if TYPE_CHECKING:
    import subprocess


class GatewayProcess:
    """A gateway on one port."""

    def __init__(self, database: str, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._database = database
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        errors = self._directory / "stderr"
        process = launch("--demo", "--port", str(self.port), errors=errors, FENCEPOST_DATABASE_URL=self._database)
        self._process = process
        greeting = await asyncio.wait_for(asyncio.to_thread(read_greeting, process), STARTS_WITHIN)
        assert self.url in greeting, f"{greeting!r} {errors.read_text()}"

    async def kill(self) -> None:
        """Kill -9 all of it."""
        process, self._process = self._process, None
        if process is None:
            return
        everything = [process.pid, *descendants(process.pid)]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        await all_gone(everything)


@asynccontextmanager
async def gateway_process(database: str, directory: Path) -> AsyncIterator[GatewayProcess]:
    """Run one until the block ends."""
    gateway = GatewayProcess(database, directory)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.kill()
