"""The launcher: commands of `fencepost` in forks of a process that has loaded them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.testing.servers.gateway import gateway_environment, is_ready
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import PATIENCE, alive, free_port, wait_until
from fencepost.testing.servers.server import ServerError


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def test_a_command_that_fails_gives_its_message(launcher: Launcher) -> None:
    environment = gateway_environment("postgresql://nobody:secret@127.0.0.1:9/none")
    with pytest.raises(ServerError, match=r"fencepost status failed: Error: .*127\.0\.0\.1"):
        launcher.run(["status"], environment)


def test_what_it_started_ends_with_it(database: str, tmp_path: Path) -> None:
    port = free_port()
    with Launcher() as launcher:
        process = launcher.launch(["serve", "--port", str(port)], gateway_environment(database), tmp_path / "log")
        wait_until(lambda: is_ready(port))
    wait_until(lambda: not alive(process.pid))
    assert process.wait(PATIENCE) == -signal.SIGKILL
