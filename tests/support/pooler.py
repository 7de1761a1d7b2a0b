"""PgBouncer before a PostgreSQL, for what must notice that it is there."""

import os
import pwd
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

import pytest

from fencepost.testing.servers.processes import free_port, listens, new_directory, remove_directory
from fencepost.testing.servers.server import Server

SETTINGS = "extra_float_digits, idle_session_timeout, statement_timeout, client_connection_check_interval"
KEEPALIVES = "tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, tcp_user_timeout"


@asynccontextmanager
async def pooled(dsn: str, mode: str, *, ignored: bool = False, options: str = "") -> AsyncIterator[str]:
    """Run PgBouncer in this `pool_mode`; gives the database's URL through it. `ignored`: it drops the settings of a
    startup packet in silence. `options`: more lines of its configuration.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer: apt-get install pgbouncer")
    parts, home, port = urlsplit(dsn), new_directory(), free_port()
    config = home / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{parts.path[1:]} = host=127.0.0.1 port={parts.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
        f"auth_file = {home / 'users'}\npool_mode = {mode}\nuser = {_user()}\n"
        + (f"ignore_startup_parameters = {SETTINGS}, {KEEPALIVES}\n" if ignored else "")
        + options
    )
    (home / "users").write_text(f'"{parts.username}" "{unquote(parts.password or "")}"\n')
    server = Server([program, config], home / "log", lambda: listens(port))
    try:
        server.start()
        await server.serves()
        yield dsn.replace(f":{parts.port}/", f":{port}/")
    finally:
        server.stop()
        remove_directory(home)


def _user() -> str:
    """Whom it runs as: it refuses root."""
    return "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
