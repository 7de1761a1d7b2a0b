"""`fencepost serve`: the gateway, and with it an embedded PostgreSQL when there is no database to use."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence

import asyncpg
import click
from pydantic import SecretStr

from fencepost import __version__
from fencepost.cli.shared import handling_stops, one_line, settings_options, to_environment
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import EmbeddedServerError, embedded_bin_dir
from fencepost.server.serving.server import ListenError, base_url, listen
from fencepost.server.settings import Settings

_TRY = """\
curl -X PATCH {url}/v1/data/orders/order-123 -H 'X-Fence-Token: {token}' \
-H 'Content-Type: application/json' -d '{{"status": "shipped"}}'"""


@click.command()
@settings_options()
def serve(settings: Settings) -> None:
    """Run the gateway. Ctrl-C finishes what is in flight and stops; a second one does not wait.

    Without a database URL it runs an embedded PostgreSQL, with its data in --data-dir.
    """
    # The server's modules are heavy, and `fencepost --help` is not: imported when they are needed.
    from fencepost.server.serving.server import ServerFailedError  # noqa: PLC0415
    from fencepost.server.startup import StartupError  # noqa: PLC0415

    # SIGTERM, like Ctrl-C, raises KeyboardInterrupt wherever we are.
    with (
        one_line(ListenError, EmbeddedServerError, StartupError, ServerFailedError),
        contextlib.suppress(KeyboardInterrupt),
        handling_stops(signal.default_int_handler),
    ):
        _serve(settings)


def _serve(settings: Settings) -> None:
    from fencepost.server.http.edge import read_sites  # noqa: PLC0415
    from fencepost.server.parts import (  # noqa: PLC0415
        check_authentication,
        check_sources,
        read_queues,
        read_rate_limits,
        read_seal_keys,
    )
    from fencepost.server.serving.server import run_gateway  # noqa: PLC0415

    check_sources(settings)
    read_queues(settings)
    read_seal_keys(settings)
    read_sites(settings.host, settings.allowed_hosts, settings.cors_origins)
    read_sites(settings.admin_host, settings.allowed_hosts, "", addresses=True)
    authenticated = check_authentication(settings)
    read_rate_limits(settings, authenticated=authenticated)
    # The ports come first: when one is busy, nothing else has been touched.
    with _listeners(settings) as listeners, _database(settings) as (url, embedded):
        ports = dict(zip(("port", "admin_port"), (each.getsockname()[1] for each in listeners), strict=False))
        resolved = settings.model_copy(update={"database_url": SecretStr(url), **ports})
        os.environ.update(to_environment(resolved))
        token = asyncio.run(_prepare(url, settings, embedded=embedded is not None))
        run_gateway(
            resolved,
            listeners,
            on_ready=lambda: click.echo(
                _greeting(settings, listeners, token, embedded=embedded is not None, authenticated=authenticated)
            ),
            database_runs=lambda: embedded is None or embedded.running,
        )


@contextlib.contextmanager
def _listeners(settings: Settings) -> Iterator[list[socket.socket]]:
    """Listen on the main port, and on the admin port if there is one. Raises ListenError."""
    with contextlib.ExitStack() as stack:
        main = stack.enter_context(listen(settings.host, settings.port, allow_remote=settings.allow_remote))
        listeners = [main]
        if settings.admin_port is not None:
            if settings.admin_port == main.getsockname()[1]:
                raise ListenError(
                    f"--port and --admin-port are both {settings.admin_port}: the two need different ones"
                )
            admin = listen(
                settings.admin_host, settings.admin_port, allow_remote=settings.allow_remote, prefix="admin-"
            )
            listeners.append(stack.enter_context(admin))
            if admin.getsockname()[1] == main.getsockname()[1]:  # of two free ones, on two addresses
                raise ListenError("--port and --admin-port took the same free port: start again")
        yield listeners


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[tuple[str, PostgresServer | None]]:
    """Give the URL of the database: the user's, or that of an embedded server that runs for as long."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value(), None
        return
    # A few more than the gateway may open are for people, and for commands.
    most = max(100, settings.workers * (sum(settings.pool_sizes) + 1) + 20)
    options = {"max_connections": str(most)}
    with PostgresServer(bin_dir=embedded_bin_dir(), data_dir=settings.data_dir, options=options) as server:
        yield server.url, server


async def _prepare(url: str, settings: Settings, *, embedded: bool) -> int | None:
    """Bring the database to where the gateway can start on it. A database of the user's is only looked at.

    Returns the token for the demo's curl line; None without a demo.
    """
    from fencepost.server.ops.demo import load  # noqa: PLC0415
    from fencepost.server.ops.protect import ProtectError  # noqa: PLC0415
    from fencepost.server.serve import check_database  # noqa: PLC0415
    from fencepost.server.startup import StartupError, within  # noqa: PLC0415

    if embedded:
        # Alembic is heavy, and no other database is migrated here.
        from fencepost.server.ops.migrate import upgrade  # noqa: PLC0415

        await upgrade(url)
    await within(settings.start_timeout, lambda: check_database(url))
    if not settings.demo:
        return None
    try:
        return await load(url)
    except (ProtectError, asyncpg.PostgresError) as error:
        raise StartupError(f"the demo table cannot be made: {error}") from error


def _greeting(
    settings: Settings, listeners: Sequence[socket.socket], token: int | None, *, embedded: bool, authenticated: bool
) -> str:
    url = base_url(listeners[0])
    lines = [f"Fencepost {__version__} serves {url}", f"  docs  {url}/docs"]
    lines += [f"  admin {base_url(admin)}" for admin in listeners[1:]]
    if embedded:
        lines.append(f"  data  {settings.data_dir}")
    if token is not None:
        known = ' -H "Authorization: Bearer $JWT"' if authenticated else ""
        lines.append(f"  try   {_TRY.format(url=url, token=token)}{known}")
    elif settings.demo:
        lines.append("  demo  was not made: there is a table orders or accounts, which is not the demo's")
    return "\n".join(lines)
