"""The event triggers that follow partitions of protected tables: what they do is in migrations/schema,
event_triggers.sql and partitions.sql.

They belong to the database and not to a schema, and only a superuser can make or own them: `fencepost migrate`, run as
one. Their functions belong to the schema's owner, as all do.
"""

from typing import Final

from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.row_sql import dollar

_FOLLOW: Final = "fencepost_partitions"
_REFUSE: Final = "fencepost_dropped"
EVENT_TRIGGERS: Final = (_FOLLOW, _REFUSE)

MISSING: Final = (
    "partitions that are attached to protected tables are not followed, and dropped or detached ones take the marks of"
    " their rows along: that needs event triggers, which only a superuser can make. Run `fencepost migrate` once as one"
    " where you can; where you cannot, see docs/protect.md on partitions"
)
"""What it means that there are no event triggers, and what to do."""

_MISSING: Final = """
SELECT NOT (
  SELECT count(*) = 2 FROM pg_event_trigger e WHERE e.evtenabled IN ('O', 'A')
     AND (e.evtname, e.evtevent, e.evtfoid) IN (
       ('fencepost_partitions', 'ddl_command_end', to_regprocedure('fencepost.on_partitions()')),
       ('fencepost_dropped', 'sql_drop', to_regprocedure('fencepost.on_dropped()'))))"""


def watch_sql() -> str:
    """Make the event triggers, as the session's own role; nothing if that is no superuser, or the schema has gone."""
    body = f"""
BEGIN
  SET LOCAL ROLE NONE;
  IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
     OR to_regprocedure('fencepost.on_dropped()') IS NULL THEN
    RETURN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname = '{_FOLLOW}') THEN
    CREATE EVENT TRIGGER {_FOLLOW} ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA')
      EXECUTE FUNCTION fencepost.on_partitions();
  END IF;
  IF NOT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname = '{_REFUSE}') THEN
    CREATE EVENT TRIGGER {_REFUSE} ON sql_drop EXECUTE FUNCTION fencepost.on_dropped();
  END IF;
END"""
    return "DO " + dollar(body)


async def lacks_event_triggers(connection: Connection) -> bool:
    """Whether the event triggers are missing or disabled."""
    return bool(await connection.fetchval(_MISSING))
