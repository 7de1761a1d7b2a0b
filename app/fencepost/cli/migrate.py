"""`fencepost migrate`: bring the schema fencepost to the newest revision."""

import asyncpg
import click

from fencepost.cli.shared import database_url, on_database, run_command, settings_options
from fencepost.server.ops import migrate as migration
from fencepost.server.ops import schema
from fencepost.server.ops.schema import act_sql
from fencepost.server.postgres.tables import quote
from fencepost.server.settings import Settings

GRANTS = (
    "GRANT SELECT ON fencepost.protected, fencepost.marks, fencepost.questions, fencepost.alembic_version TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.raise_mark(text, bigint, text, boolean), fencepost.floor_of(text),"
    " fencepost.meet_ceiling(text, text, bigint, bigint, bigint), fencepost.mark_without_row(text, text),"
    " fencepost.mark_record(text), fencepost.enter(text, text[], bigint, oid, text),"
    " fencepost.enter_each(text, text[], bigint[], oid, text) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.idem_begin(text, text, bytea),"
    " fencepost.idem_record(text, text, bytea, json, text, text), fencepost.idem_begin_each(text, text[], bytea[]),"
    " fencepost.idem_record_each(text[], text[], bytea[], json[], text[], text[]),"
    " fencepost.prune_idempotency(double precision, integer) TO {role}",
    "GRANT EXECUTE ON FUNCTION"
    " fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer, text[]),"
    " fencepost.acquire_each(text[], bytea[], text[], integer[], integer[], bigint[], text[]),"
    " fencepost.is_taken(text), fencepost.taken_by(bytea[]), fencepost.put_aside(bigint),"
    " fencepost.extend(bigint, bytea, integer, integer), fencepost.release(bigint, bytea, uuid),"
    " fencepost.release_each(bigint[], bytea[], uuid),"
    " fencepost.leave(uuid, integer), fencepost.beat(uuid, uuid[], uuid[]), fencepost.retire(uuid),"
    " fencepost.sweep(), fencepost.forget(double precision, bigint), fencepost.begin_now(bigint),"
    " fencepost.withdraw(bytea), fencepost.is_withdrawn(bytea), fencepost.lease(bigint), fencepost.lost(bigint),"
    " fencepost.issued_to(bigint), fencepost.lock_states(text[], text, integer, text[]), fencepost.lock_counts(),"
    " fencepost.watch(oid, uuid), fencepost.unwatch(uuid),"
    " fencepost.note_question(oid, text[], text[]) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.source_register(text, text, text, boolean),"
    " fencepost.source_state(text, text), fencepost.source_repeated(bytea),"
    " fencepost.source_draw(text, bigint, integer), fencepost.source_grant(text, text, bytea, text, text[], text,"
    " bigint[], bigint, bigint, integer, integer, text[]),"
    " fencepost.source_claiming(bigint), fencepost.source_claimed(bigint, bigint[]),"
    " fencepost.source_hold(text, bigint, bytea), fencepost.source_lease(text, bigint, bytea),"
    " fencepost.source_renewed(bigint, bytea, integer, integer),"
    " fencepost.source_minted(bigint, bytea, bigint[], bigint, bigint), fencepost.source_end(bigint, text),"
    " fencepost.source_over(bigint[]), fencepost.source_issued_to(text, bigint), fencepost.source_lost(text, bigint),"
    " fencepost.source_lock_states(text, text[], text, integer, text[]), fencepost.source_verified(text, bigint),"
    " fencepost.source_forget(double precision, integer) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.queue_register(text, text),"
    " fencepost.queue_check(text, text, bigint[], bigint[], bigint, bigint[], bigint[]),"
    " fencepost.queue_quarantine(text, text, bigint),"
    " fencepost.queue_note_progress(text, bigint, integer[], bigint[], double precision[], bigint[], bigint[],"
    " bigint[], bigint[], text[], text[], double precision[]),"
    " fencepost.queue_committed(text, bigint, bigint[]), fencepost.queue_is_committed(text, bigint, integer, bigint),"
    " fencepost.queue_looked(text, bigint, text, double precision, bigint[], bigint[]),"
    " fencepost.queue_applied_to(text), fencepost.queue_forgotten_to(text), fencepost.queue_claim(text, bytea),"
    " fencepost.queue_note_pause(text, text, text), fencepost.queue_known(), fencepost.queue_stop(text, text, text),"
    " fencepost.queue_clear(text, text, text), fencepost.queue_close(text, text), fencepost.queue_stopped_by(text),"
    " fencepost.queue_results(text[], bytea),"
    " fencepost.queue_record(text, bytea, json, text, text, text, text, text, bigint),"
    " fencepost.queue_letters_of(text, text) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.queue_append(integer[], bytea[], text[], bytea[], integer[], bytea[]),"
    " fencepost.queue_state(), fencepost.queue_decided(), fencepost.queue_oldest(),"
    " fencepost.queue_at(integer, bigint), fencepost.queue_join(text, text, integer, boolean),"
    " fencepost.queue_own(text, integer, integer[]),"
    " fencepost.queue_take(text, integer[], integer[], bigint[], integer, bigint),"
    " fencepost.queue_done(integer[], bigint[]), fencepost.queue_leave(text), fencepost.queue_buried(text, integer),"
    " fencepost.queue_exhume(text),"
    " fencepost.queue_bury(text, text, integer, bigint, bytea, text[], bytea[], bytea, double precision),"
    " fencepost.queue_dead_count() TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.api_keys_of(text[]), fencepost.api_keys_used(text[]) TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.add_refusals(text[], text[], bigint[], text[]) TO {role}",
    "GRANT SELECT ON fencepost.generations TO {role}",
    "GRANT EXECUTE ON FUNCTION fencepost.origin(bigint, uuid), fencepost.leave_moment(), fencepost.prune_horizon(),"
    " fencepost.prune_marks(bigint, xid8, double precision, text, integer), fencepost.sizes() TO {role}",
)


@click.command()
@settings_options("database_url", "data_dir")
@click.option("--sql", is_flag=True, help="Print the SQL instead and touch nothing.")
@click.option(
    "--owner",
    metavar="ROLE",
    help="Give the schema and all in it to this role, made (NOLOGIN) if absent, so that no table's owner can touch"
    " marks. Later runs keep it.",
)
@click.option("--gateway-role", help="Grant a role of its own, under which the gateway will run, what it needs.")
def migrate(settings: Settings, sql: bool, owner: str | None, gateway_role: str | None) -> None:
    """Create or update the schema fencepost. Nothing outside of it is touched; it can be repeated.

    Everything in it belongs to its owner: the role of --owner, else the role that ran this first.
    """
    for option, role in (("--owner", owner), ("--gateway-role", gateway_role)):
        if role is not None and not role.strip():
            raise click.BadParameter("a role's name is needed", param_hint=option)
    grants = [act_sql(), *(grant.format(role=quote(gateway_role)) for grant in GRANTS)] if gateway_role else []
    if sql:
        script = "".join(f"{each};\n" for each in ("BEGIN", *grants, "COMMIT")) if grants else ""
        click.echo(migration.upgrade_sql(owner) + script)
        return
    url = database_url(settings)
    run_command(lambda: migration.upgrade(url, owner=owner))

    async def grant_all(connection: asyncpg.Connection) -> bool:
        async with connection.transaction():
            for grant in grants:
                await connection.execute(grant)
        return await schema.lacks_event_triggers(connection)

    unwatched = on_database(settings, grant_all)
    click.echo(f"the schema fencepost is at revision {schema.newest()}")
    if unwatched:
        click.echo(f"note: {''.join(schema.MISSING)}.")
