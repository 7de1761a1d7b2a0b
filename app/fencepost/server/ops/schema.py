"""The schema's revisions: which ones this version knows, which one a database is at, and who owns it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.row_sql import dollar, literal

# Which revisions of the schema this version of Fencepost has, and which one a database is at.
#
# Without Alembic, which takes longer to import than all the rest of a gateway: each process of a gateway looks here,
# and only `migrate` migrates.

PACKAGE = Path(__file__).parents[2]


def scripts_dir() -> Path:
    """Where the migration scripts are: inside an installed package, or beside `app/` in a checkout."""
    installed = PACKAGE / "migrations"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "migrations"


def known_revisions() -> tuple[str, ...]:
    """Name the revisions that this version of Fencepost brings, the oldest first. It works with the newest.

    They are the numbers with which the names of their files begin, as Alembic makes them here.
    """
    return _known(scripts_dir())


@cache
def _known(directory: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name.partition("_")[0] for path in (directory / "versions").glob("[0-9]*_*.py")))


def newest() -> str:
    """Name the newest of them."""
    return known_revisions()[-1]


FOUND: Final = "SELECT to_regclass('fencepost.alembic_version') IS NOT NULL"
CURRENT: Final = "SELECT version_num FROM fencepost.alembic_version"


async def current(connection: Connection) -> str | None:
    """Read the revision of the database, None when it was never migrated."""
    revision: str | None = await connection.fetchval(CURRENT) if await connection.fetchval(FOUND) else None
    return revision


# Whether this version of Fencepost can work on the schema that it finds: what versions N and N+1 promise each other.
#
# Revisions of the schema follow one another in a line. Version N of Fencepost brings all up to its newest.
#
# - The schema is older: nothing of this version works on it. `fencepost migrate` comes first, and then the gateways.
# - The schema is newer: its function fencepost.compatible_from() names the revision from which on gateways and commands
#   can work on it. If that is one that this version has, they work, and report that they are behind: so the schema is
#   migrated while gateways of version N serve, and they are replaced one after the other. Else they are to be upgraded.
#
# A migration that leaves everything in place that the version before uses keeps compatible_from() as it is; one that
# does not sets it to its own revision. A version that is older than the schema never migrates it.

Verdict = Literal["same", "missing", "older", "newer", "too new"]


@dataclass(frozen=True, slots=True)
class Fit:
    """What became of the comparison. `found` is the revision of the schema, `newest` that of this version."""

    verdict: Verdict
    found: str | None
    newest: str

    @property
    def works(self) -> bool:
        return self.verdict in ("same", "newer")

    def describe(self) -> str:
        """Return the version found and the command to run, as one line."""
        match self.verdict:
            case "same":
                return f"revision {self.found}"
            case "missing":
                return "the database has no schema fencepost: run `fencepost migrate`"
            case "older":
                return f"revision {self.found}, where {self.newest} is needed: run `fencepost migrate`"
            case "newer":
                return (
                    f"revision {self.found}, newer than {self.newest} of this version of Fencepost, which can work on"
                    " it: upgrade it when the migration is done"
                )
            case "too new":
                return (
                    f"revision {self.found}, on which this version of Fencepost ({self.newest}) cannot work: upgrade"
                    " it. Migrating again changes nothing"
                )


HAS_OLDEST: Final = "SELECT to_regprocedure('fencepost.compatible_from()') IS NOT NULL"
OLDEST: Final = "SELECT fencepost.compatible_from()"


async def fit(connection: Connection) -> Fit:
    """Compare the schema with this version."""
    found = await current(connection)
    return compare(found, await connection.fetchval(OLDEST) if await connection.fetchval(HAS_OLDEST) else None)


def compare(found: str | None, oldest: str | None) -> Fit:
    """Compare the revision of the schema, and the oldest one that it works with, with this version's."""
    known = known_revisions()
    if found is None or found in known:
        verdict: Verdict = "missing" if found is None else "same" if found == known[-1] else "older"
        return Fit(verdict, found, known[-1])
    return Fit("newer" if oldest in known else "too new", found, known[-1])


# Whose the schema fencepost is, as SQL: `migrate --owner ROLE`.
#
# The functions that write marks run in their owner's name. So everything in the schema belongs to the schema's owner:
# the role that ran the first `migrate`, or one of its own, whose members are no application. An owner of tables who is
# no member of it can take a fence off his table, but cannot lower a mark.

SCHEMA: Final = "fencepost"

RELATIONS: Final = (
    "alembic_version", "api_keys", "break_glass_log", "draws", "floors", "gateways", "generations", "idempotency",
    "lease_ids", "leases", "live_waiters", "locks", "marks", "moments", "protected", "questions", "queue_0",
    "queue_1", "queue_2", "queue_3", "queue_4", "queue_5", "queue_6", "queue_7", "queue_dead", "queue_letters",
    "queue_members", "queue_owners", "queue_partitions", "queue_stopped", "queued", "queues", "refusals",
    "source_draws", "source_leases", "source_log", "sources", "tickets", "tokens", "waiters", "watched",
    "withdrawn",
)  # fmt: skip
"""The tables, views and sequences that are ours: others may have come into the schema by a search_path."""

# A member who may act as the role and has its privileges; before 16 membership was all there was.
_MAY_ACT: Final = """
pg_has_role(keeper, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)"""

_STRAYS: Final = f"""
SELECT s.owner, s.command FROM (
  SELECT c.relowner AS owner, format('ALTER %s %I.%I', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW'
           ELSE 'TABLE' END, {literal(SCHEMA)}, c.relname) AS command
    FROM pg_class c WHERE c.relnamespace = {literal(SCHEMA)}::regnamespace
     AND c.relname IN ({", ".join(literal(name) for name in RELATIONS)}) AND c.relkind IN ('r', 'v', 'S')
  UNION ALL
  SELECT f.proowner, format('ALTER ROUTINE %s', f.oid::regprocedure)
    FROM pg_proc f WHERE f.pronamespace = {literal(SCHEMA)}::regnamespace
  UNION ALL
  SELECT t.typowner, format('ALTER TYPE %I.%I', {literal(SCHEMA)}, t.typname)
    FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
   WHERE t.typnamespace = {literal(SCHEMA)}::regnamespace AND t.typtype = 'c' AND c.relkind = 'c') s"""

_SETTLE: Final = f"""
  keeper name := (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = {literal(SCHEMA)});
  known boolean := keeper IS NOT NULL;
  stray record;
BEGIN
  IF wanted IS NOT NULL AND wanted IS DISTINCT FROM keeper THEN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = wanted) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;  -- by a migration of another database, at once
        WHEN insufficient_privilege THEN
          RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('there is no role %s, and %s may not create one:'
            ' CREATE ROLE %I NOLOGIN, and GRANT it to %I', wanted, current_user, wanted, current_user);
      END;
      keeper := wanted;
      -- A role that creates another may grant it, and since 16 does not act as it before that.
      IF NOT ({_MAY_ACT} AND pg_has_role(keeper, 'USAGE')) THEN
        EXECUTE format('GRANT %I TO %I', wanted, current_user);
      END IF;
    END IF;
    keeper := wanted;
  END IF;
  IF keeper IS NOT NULL AND NOT ({_MAY_ACT} AND pg_has_role(keeper, 'USAGE')) THEN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%s is not a member of the role %s%s: GRANT %I TO %I',
      current_user, keeper, CASE WHEN wanted IS NULL THEN ', which the schema fencepost belongs to' ELSE '' END, keeper,
      current_user);
  END IF;
  IF NOT known THEN
    EXECUTE format('CREATE SCHEMA {SCHEMA} AUTHORIZATION %I', coalesce(keeper, current_user));
  ELSIF wanted IS NOT NULL THEN
    EXECUTE format('ALTER SCHEMA {SCHEMA} OWNER TO %I', wanted);
  END IF;
  keeper := coalesce(keeper, current_user);
  FOR stray IN {_STRAYS} WHERE pg_get_userbyid(s.owner) <> keeper LOOP
    -- What another role made stays that role's, unless --owner asks that all of it changes hands: doctor reports it.
    CONTINUE WHEN wanted IS NULL AND NOT pg_has_role(stray.owner, 'USAGE');
    EXECUTE format('%s OWNER TO %I', stray.command, keeper);
  END LOOP;
END"""
"""What settles it, but for `DECLARE wanted name := …;` before."""


def settle_sql(wanted: str | None) -> str:
    """Make the schema if there is none, and everything in it its owner's; `wanted` becomes the owner, and is made if
    there is no such role. None: the owner stays.

    SQLSTATE 42501 names what the current role may not do.
    """
    chosen = literal(wanted) if wanted is not None else "NULL"
    return "DO " + dollar(f"\nDECLARE\n  wanted name := {chosen};{_SETTLE}")


def act_sql() -> str:
    """Act as the schema's owner until the transaction ends, so that what it makes is his."""
    return "DO " + dollar(
        f"BEGIN EXECUTE format('SET LOCAL ROLE %I', (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n"
        f" WHERE n.nspname = {literal(SCHEMA)})); END"
    )


# The event triggers that follow partitions of protected tables: what they do is in migrations/schema,
# event_triggers.sql and partitions.sql.
#
# They belong to the database and not to a schema, and only a superuser can make or own them: `fencepost migrate`, run
# as one. Their functions belong to the schema's owner, as all do.

_FOLLOW: Final = "fencepost_partitions"
_REFUSE: Final = "fencepost_dropped"
EVENT_TRIGGERS: Final = (_FOLLOW, _REFUSE)

MISSING: Final = (
    "partitions that are attached to protected tables are not followed, and dropped or detached ones take the marks of"
    " their rows along: that needs event triggers, which only a superuser can make",
    ". Run `fencepost migrate` once as one where you can; where you cannot, see docs/protect.md on partitions",
)
"""What it means that there are no event triggers, and what to do."""

LACKS_EVENT_TRIGGERS: Final = """
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
    return bool(await connection.fetchval(LACKS_EVENT_TRIGGERS))
