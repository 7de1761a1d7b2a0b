"""The gateway as a process, and the commands of `fencepost`: both run as a user would run them."""

import functools
import http.client
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import free_port
from fencepost.testing.servers.server import ChildProcess, Server, ServerError

COMMAND: Final = (sys.executable, "-P", "-m", "fencepost")
"""How `fencepost` is run: with this Python, whatever is in the current directory."""


def gateway_environment(database: str, **settings: str) -> dict[str, str]:
    """Give the environment for a command of `fencepost`: this process's, without its settings of Fencepost.

    `settings` are variables such as FENCEPOST_SOURCES.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    return {**kept, "FENCEPOST_DATABASE_URL": database, **settings}


def run_command(database: str, *arguments: str) -> str:
    """Run `fencepost ARGUMENTS` on a database and return what it prints. ServerError when it fails, with its
    message.
    """
    done = subprocess.run(  # noqa: S603 - a program of ours, no shell
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=gateway_environment(database),
    )
    if done.returncode != 0:
        raise ServerError(f"fencepost {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


class HasDatabase(Protocol):
    """A gateway whose database is known."""

    @property
    def database(self) -> str: ...

    @property
    def running(self) -> bool: ...


known_gateways: Final["weakref.WeakSet[HasDatabase]"] = weakref.WeakSet()


def database_of_the_gateway() -> str:
    """Return the database of the gateway that this process runs or uses. ServerError when there is none, or several.

    One that was killed counts where none runs: its database is still there.
    """
    found = {gateway.database for gateway in known_gateways if gateway.running}
    found = found or {gateway.database for gateway in known_gateways}
    if len(found) != 1:
        raise ServerError(f"the harness runs gateways on {len(found)} databases here: say which, with database=URL")
    return found.pop()


class GatewayServer(Server):
    """One `fencepost serve` on a database. Its URL stays the same when it is killed and started again.

    `database` is its PostgreSQL URL; `log` gets what it prints; `options` are more of the command line; `settings` are
    variables such as FENCEPOST_SOURCES; with a `launcher` it starts quicker. The database must have been migrated
    (`fencepost migrate`).
    """

    def __init__(
        self,
        database: str,
        log: Path,
        *options: str,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.database = database
        self._launcher = launcher
        self.port = port or free_port()
        super().__init__(
            [*COMMAND, "serve", "--port", str(self.port), *options],
            log,
            functools.partial(is_ready, self.port),
            gateway_environment(database, **(settings or {})),
        )
        known_gateways.add(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _spawn(self) -> ChildProcess:
        if self._launcher is None:
            return super()._spawn()
        return self._launcher.launch(
            [str(word) for word in self._command[len(COMMAND) :]], self._environment or {}, self._log
        )


def is_ready(port: int) -> bool:
    """Whether a gateway on this port of loopback says that it can serve (/readyz)."""
    with suppress(OSError, http.client.HTTPException):
        return ask("127.0.0.1", port, "/readyz")[0] == http.HTTPStatus.OK
    return False


def ask(
    host: str, port: int, path: str, timeout: float = 2.0, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """GET a path: the status, and the body's JSON, None where it is none. OSError, HTTPException when none answers."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, None
