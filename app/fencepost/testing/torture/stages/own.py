"""Servers of a run's own: PostgreSQL, gateways as processes with a link on each side, and a lock service."""

import asyncio
import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import asyncpg

from fencepost.server.ops.embedded.server import EmbeddedServerError, embedded_bin_dir
from fencepost.server.ops.protecting.protect import ProtectError
from fencepost.server.ops.schema.migrate import upgrade
from fencepost.testing.faults.link import Link
from fencepost.testing.servers.gateway import gateway_environment, is_ready
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.server import Server, ServerError
from fencepost.testing.torture.assignment import BUILTIN
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.errors import BadInputError, RunFailedError
from fencepost.testing.torture.faults import ADVISORY, KINDS, Need, choose, spared
from fencepost.testing.torture.stages import making
from fencepost.testing.torture.stages.primary import OwnPrimary
from fencepost.testing.torture.stages.services import start_lock_service
from fencepost.testing.torture.stages.stage import Stage, StageGateway
from fencepost.testing.torture.tables import Fenced

_DEBIAN: Final = Path("/usr/lib/postgresql")
_QUIET: Final = ("--log-level", "error")


@contextmanager
def own_stage(config: Config, directory: Path, prefix: str, made: list[Fenced]) -> Iterator[Stage]:
    """Start everything, make the tables, and end everything after the block. Raises BadInputError, RunFailedError.

    `prefix`: begins the names of all that is made.
    """
    has = available(config)
    kinds = choose(config.faults, has, spared(config.source, trusts=config.play.trusts))
    source = _source_name(config, prefix)
    with ExitStack() as stack:
        try:
            primary, url = _database(config, directory, stack, standby=any("standby" in KINDS[k].needs for k in kinds))
            urls, services = start_lock_service(config.source, source, directory, stack)
            gateways = [_gateway(config, f"g{n}", url, urls, directory, stack) for n in range(config.gateways)]
            for gateway in gateways:
                gateway.server.wait()
            # A source is known once a gateway that has it was there.
            asyncio.run(making.make(url, made, source))
            stack.callback(_drop, primary, url, made)
        except (EmbeddedServerError, ServerError) as error:
            raise RunFailedError(str(error)) from error
        except (OSError, asyncpg.PostgresError, ProtectError) as error:
            raise BadInputError(f"the tables cannot be made: {error}") from error
        to_database = stack.enter_context(Link.to(url))
        yield Stage(
            urls=tuple(gateway.front.url for gateway in gateways),
            source=source,
            database_url=to_database.url,
            directory=directory,
            gateways=gateways,
            primary=primary,
            lock_service=services,
            to_database=to_database,
            has=has,
            faults=kinds,
        )


def available(config: Config) -> frozenset[Need]:
    """What faults can be done to in a run with servers of its own."""
    has: set[Need] = {"holders", "gateways", "sessions", "database"}
    if config.database_url is None:
        has |= {"postgres", "standby"}
    if config.source != ADVISORY:  # that one is in PostgreSQL
        has.add("builtin" if config.source == BUILTIN else "lock-service")
    return frozenset(has) - spared(config.source, trusts=config.play.trusts)


def _source_name(config: Config, prefix: str) -> str:
    """Name the source: in a database that others use too, not as theirs may be called.

    Its service counts from 1. Under the name of a source that has counted further, that would be a step back, and the
    other programs' source would be in quarantine (R12).
    """
    return config.source_name if config.source == BUILTIN or config.database_url is None else prefix


def _database(config: Config, directory: Path, stack: ExitStack, *, standby: bool) -> tuple[OwnPrimary | None, str]:
    if config.database_url is not None:
        return None, config.database_url
    primary = OwnPrimary(_programs(), directory, standby=False)
    stack.callback(primary.stop)
    primary.start()
    asyncio.run(upgrade(primary.url))
    if standby:
        primary.follow()
    return primary, primary.url


def _programs() -> Path:
    """Find a PostgreSQL: the embedded one, else Debian's newest."""
    try:
        return embedded_bin_dir()
    except EmbeddedServerError as error:
        installed = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
        if not installed:
            raise BadInputError(f"no PostgreSQL to start: {error}; or apt-get install postgresql") from error
        return installed[-1].parent


def _gateway(
    config: Config, name: str, database_url: str, sources: str, directory: Path, stack: ExitStack
) -> StageGateway:
    back = stack.enter_context(Link.to(database_url))
    port = free_port()
    command = [*config.gateway_command, "serve", "--port", str(port), *_QUIET]
    environment = gateway_environment(back.url, **({"FENCEPOST_SOURCES": sources} if sources else {}))
    server = Server(command, directory / f"{name}.log", functools.partial(is_ready, port), environment)
    server.start()
    stack.callback(server.stop)
    front = stack.enter_context(Link.to(f"http://127.0.0.1:{port}"))
    return StageGateway(name, server, front, back)


def _drop(primary: OwnPrimary | None, url: str, made: list[Fenced]) -> None:
    """Drop the tables from a database that goes on to be; one of our own goes as a whole."""
    if primary is None:
        asyncio.run(making.drop(url, made))
