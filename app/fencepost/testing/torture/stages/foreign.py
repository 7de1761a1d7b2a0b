"""A gateway that runs already: looked at before anything is made. Afterwards only marks of dropped tables are left."""

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from fencepost.server.ops.protecting.protect import ProtectError
from fencepost.testing.servers.gateway import ask
from fencepost.testing.torture.assignment import BUILTIN
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.errors import BadInputError
from fencepost.testing.torture.faults import Need, choose, spared
from fencepost.testing.torture.holders.token import run_token
from fencepost.testing.torture.stages import making
from fencepost.testing.torture.stages.stage import Stage
from fencepost.testing.torture.tables import Fenced

_OK: Final = 200
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_READY_MEMBERS: Final = frozenset({"status", "database", "origin", "sources"})


@contextmanager
def foreign_stage(config: Config, directory: Path, prefix: str, made: list[Fenced]) -> Iterator[Stage]:
    """Make the tables in the gateway's database, and drop them after the block. Raises BadInputError.

    A workload without tables has one made too: it shows that the database is the gateway's.
    """
    assert config.url is not None  # noqa: S101 - for the type
    has = available(config)
    kinds = choose(config.faults, has, spared(config.source, trusts=config.play.trusts))
    ready = look(config.url)
    # A gateway with --admin-port shows no more than its status here: then the first acquire shows whether it has it.
    if "sources" in ready and config.source not in {BUILTIN, *ready["sources"]}:
        known = ", ".join([BUILTIN, *ready["sources"]])
        raise BadInputError(f"the gateway at {config.url} has no source {config.source}. It has: {known}.")
    if made and config.database_url is None:
        raise BadInputError(
            f"the workload {config.workload} needs tables of its own, which are made past the gateway: give the"
            " gateway's database with --database-url. (The workload mutex needs none.)"
        )
    if config.database_url is None:
        yield Stage((config.url,), config.source_name, None, directory, has=has, faults=kinds)
        return
    if not made and "builtin" not in has:
        raise BadInputError(
            f"--database-url does nothing for the workload {config.workload} with the source {config.source}: it has no"
            " tables, and its leases are not in the database. Leave it out."
        )
    made = made or [Fenced(prefix, "strict")]
    try:
        asyncio.run(making.make(config.database_url, made, config.source_name))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ProtectError) as error:
        raise BadInputError(f"the tables cannot be made in the database of --database-url: {error}") from error
    try:
        require_served(config.url, made)
        yield Stage((config.url,), config.source_name, config.database_url, directory, has=has, faults=kinds)
    finally:
        asyncio.run(making.drop(config.database_url, made))


def available(config: Config) -> frozenset[Need]:
    """What faults can be done to in a run against a gateway that another program has started."""
    has: set[Need] = {"holders"}
    if config.database_url is not None:
        has.add("database")
        if config.source == BUILTIN:
            has.add("builtin")
    return frozenset(has) - spared(config.source, trusts=config.play.trusts)


def look(url: str) -> dict[str, Any]:
    """Ask a gateway whether it is one, and ready. Raises BadInputError."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise BadInputError(f"{url} is not a URL of a gateway: {error}.") from error
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise BadInputError(f"{url} is not a URL of a gateway: it is written http://HOST:PORT.")
    try:
        status, body = ask(parts.hostname, port or 80, "/readyz", headers=_headers())
    except (OSError, http.client.HTTPException) as error:
        raise BadInputError(f"no gateway can be reached at {url}: {str(error) or type(error).__name__}.") from error
    if status == _UNAUTHENTICATED and isinstance(body, dict):
        raise BadInputError(f"the gateway at {url} does not accept the token: {body.get('detail')}")
    if not isinstance(body, dict) or not (body.keys() >= _READY_MEMBERS or body.keys() == {"status"}):
        raise BadInputError(f"what answers at {url} is not Fencepost: its /readyz is another one.")
    if status != _OK:
        raise BadInputError(f"the gateway at {url} is not ready: {body}.")
    status, refusal = ask(parts.hostname, port or 80, "/v1/locks", headers=_headers())
    if status in (_UNAUTHENTICATED, _FORBIDDEN) and isinstance(refusal, dict):
        hint = "" if _headers() else " Give a token: --api-token-file."
        raise BadInputError(f"the gateway at {url} does not let the run in: {refusal.get('detail')}{hint}")
    return body


def require_served(url: str, made: list[Fenced]) -> None:
    """Raise BadInputError unless the gateway has these tables: else --database-url is not its database."""
    parts = urlsplit(url)
    for table in made:
        if table.kind == "plain":
            continue
        path = f"/v1/data/{table.name}?limit=1"
        status, body = ask(parts.hostname or "", parts.port or 80, path, headers=_headers())
        if status in (_UNAUTHENTICATED, _FORBIDDEN) and isinstance(body, dict):
            raise BadInputError(f"the gateway at {url} does not let the run read its tables: {body.get('detail')}")
        if status != _OK:
            raise BadInputError(
                f"the gateway at {url} does not serve the table {table.name}, which was just made in the database of"
                " --database-url: is that the gateway's database, and does the gateway serve the schema public?"
            )


def _headers() -> dict[str, str]:
    token = run_token()
    return {} if token is None else {"Authorization": f"Bearer {token()}"}
