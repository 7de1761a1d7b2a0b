"""Commands under `fencepost lock`, as processes, on a live gateway."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Running, StartLock, start_lock
from tests.http.conftest import demo_database, gateway_url, http, shared, start_gateway
from tests.support.servers import all_gone

from fencepost.testing.servers.processes import descendants

__all__ = ["demo_database", "gateway_url", "http", "shared", "start_gateway"]


@pytest.fixture
async def lock(gateway_url: str, tmp_path: Path) -> AsyncIterator[StartLock]:
    """Give what starts `fencepost lock` with these arguments in `tmp_path`. Nothing of it is left afterwards."""
    started: list[Running] = []

    def start(*arguments: str, url: str = gateway_url, **options: Any) -> Running:
        errors = tmp_path / f"stderr-{len(started)}"
        running = start_lock(*arguments, errors=errors, directory=tmp_path, url=url, **options)
        started.append(running)
        return running

    yield start
    for running in started:
        everything = [running.process.pid, *descendants(running.process.pid)]
        if running.process.poll() is None:
            for pid in everything:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()
        await all_gone(everything)
