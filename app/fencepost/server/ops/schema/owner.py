"""Whose the schema fencepost is, as SQL: `migrate --owner ROLE`.

The functions that write marks run in their owner's name. So everything in the schema belongs to the schema's owner: the
role that ran the first `migrate`, or one of its own, whose members are no application. An owner of tables who is
no member of it can take a fence off his table, but cannot lower a mark.
"""

from typing import Final

from fencepost.server.postgres.row_sql import dollar, literal

SCHEMA: Final = "fencepost"

RELATIONS: Final = (
    "alembic_version", "api_keys", "break_glass_log", "draws", "floors", "gateways", "generations", "idempotency",
    "lease_ids", "leases", "live_waiters", "locks", "marks", "moments", "protected", "queue_0", "queue_1", "queue_2",
    "queue_3", "queue_4", "queue_5", "queue_6", "queue_7", "queue_dead", "queue_letters", "queue_members",
    "queue_owners", "queue_partitions", "queue_stopped", "queued", "queues", "refusals", "source_draws",
    "source_leases", "source_log", "sources", "tickets", "tokens", "waiters", "withdrawn",
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
