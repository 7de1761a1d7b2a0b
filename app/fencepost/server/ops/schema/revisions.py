"""Which revisions of the schema this version of Fencepost has, and which one a database is at.

Without Alembic, which takes longer to import than all the rest of a gateway: each process of a gateway looks here, and
only `migrate` migrates.
"""

from functools import cache
from pathlib import Path

from fencepost.server.postgres.connection import Connection

PACKAGE = Path(__file__).parents[3]


def scripts_dir() -> Path:
    """Where the migration scripts are: inside an installed package, or beside `app/` in a checkout."""
    installed = PACKAGE / "migrations"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "migrations"


def known() -> tuple[str, ...]:
    """Name the revisions that this version of Fencepost brings, the oldest first. It works with the newest.

    They are the numbers with which the names of their files begin, as Alembic makes them here.
    """
    return _known(scripts_dir())


@cache
def _known(directory: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name.partition("_")[0] for path in (directory / "versions").glob("[0-9]*_*.py")))


def newest() -> str:
    """Name the newest of them."""
    return known()[-1]


async def current(connection: Connection) -> str | None:
    """Read the revision of the database, None when it was never migrated."""
    if await connection.fetchval("SELECT to_regclass('fencepost.alembic_version') IS NULL"):
        return None
    revision: str | None = await connection.fetchval("SELECT version_num FROM fencepost.alembic_version")
    return revision
