"""`fencepost migrate`: bring the schema fencepost to the newest revision."""

import asyncpg
import click

from fencepost.settings import Settings
from fencepost.storage import migrate as migration
from fencepost.storage.catalog import quote

from .database import database_url, on_database, reporting
from .options import settings_options

_GRANTS = (
    "GRANT SELECT ON fencepost.protected, fencepost.marks, fencepost.alembic_version TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.raise_mark(text, bigint, text, boolean), fencepost.floor_of(text),"
    " fencepost.mark_without_row(text, text), fencepost.mark_record(text),"
    " fencepost.enter(text, text[], bigint) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.idem_begin(text, text, bytea),"
    " fencepost.idem_record(text, text, bytea, integer, text[], bytea),"
    " fencepost.prune_idempotency(double precision, integer) TO {role}",
    "GRANT EXECUTE ON FUNCTION"
    " fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer),"
    " fencepost.extend(bigint, bytea, integer, integer), fencepost.release(bigint, bytea, uuid),"
    " fencepost.leave(uuid, integer), fencepost.beat(uuid, uuid[], uuid[]), fencepost.retire(uuid),"
    " fencepost.sweep(), fencepost.forget(double precision, bigint), fencepost.begin_now(bigint),"
    " fencepost.lease(bigint), fencepost.lost(bigint),"
    " fencepost.issued_to(bigint), fencepost.lock_states(text, text, integer), fencepost.lock_counts() TO {role}",
    "GRANT SELECT ON fencepost.generations TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.origin(), fencepost.prune_horizon(),"
    " fencepost.prune_marks(bigint, xid8, double precision, text, integer), fencepost.sizes() TO {role}",
)


@click.command()
@settings_options("database_url", "data_dir")
@click.option("--sql", is_flag=True, help="Print the SQL instead and touch nothing.")
@click.option("--gateway-role", help="Grant a role of its own, under which the gateway will run, what it needs.")
def migrate(settings: Settings, sql: bool, gateway_role: str | None) -> None:
    """Create or update the schema fencepost. Nothing outside of it is touched; it can be repeated."""
    grants = [grant.format(role=quote(gateway_role)) for grant in _GRANTS] if gateway_role else []
    if sql:
        click.echo(migration.upgrade_sql() + "".join(f"{grant};\n" for grant in grants))
        return
    url = database_url(settings)
    reporting(lambda: migration.upgrade(url))

    async def grant_all(connection: asyncpg.Connection) -> None:
        for grant in grants:
            await connection.execute(grant)

    on_database(settings, grant_all)
    click.echo(f"the schema fencepost is at revision {migration.newest()}")
