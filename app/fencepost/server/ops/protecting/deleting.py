"""The function by which the gateway deletes a row of a protected table."""

from typing import Final

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protecting.target import Target
from fencepost.server.postgres.row_sql import comparison, literal, or_unfenced
from fencepost.server.postgres.tables import MARK_COLUMN, quote

_EQ: Final = "OPERATOR(pg_catalog.=)"
_GT: Final = "OPERATOR(pg_catalog.>)"


def delete_body(target: Target, table: str, rule: Rule) -> str:
    """Write the gateway's DELETE in one round trip: the token is bound to this table, and is taken back at its end. The
    row comes back with the columns that are `shown`, all of them if that is NULL, and with nulls in place of others:
    these are not read, and need no privilege.
    """
    name, op = literal(target.name), f"OPERATOR(pg_catalog.{comparison(rule)})"
    given = [f"k{n}" for n, _ in enumerate(target.key, 1)]
    of_key = f"{table} AS r WHERE {_match(target, given)}"
    may_go = f"{of_key} AND r.{MARK_COLUMN} {op} token"
    delete = f"DELETE FROM {may_go} AND {_fenced(target, table)}"
    return f"""
#variable_conflict use_variable
DECLARE
  before pg_catalog.text := pg_catalog.current_setting('fencepost.token', true);
BEGIN
  PERFORM pg_catalog.set_config('fencepost.token', pg_catalog.concat({name}, '=', token), true);
  FOR round IN 1..10 LOOP
    IF shown IS NULL THEN
      RETURN QUERY {delete} RETURNING r.*;
    ELSIF pg_catalog.cardinality(shown) {_EQ} 0 THEN
      RETURN QUERY {delete} RETURNING (NULL::{table}).*;
    ELSE
      RETURN QUERY EXECUTE {_showing_some(target, table, op)}
        USING {", ".join([*given, "token"])};
    END IF;
    EXIT WHEN FOUND;
    -- Not there, or refused by its mark: that is for the caller to ask. There, and it would pass or a trigger has just
    -- written it: made anew meanwhile, so again; or kept from being deleted, and then nothing may remain of it.
    PERFORM FROM {may_go};
    IF NOT FOUND THEN
      -- A transaction that has no number has written nothing; xmin is a column of its own, to which few have a right.
      EXIT WHEN pg_catalog.pg_current_xact_id_if_assigned() IS NULL;
      PERFORM FROM {of_key} AND fencepost.is_own_write(r.xmin);
      EXIT WHEN NOT FOUND;
    END IF;
    IF round {_EQ} 10 THEN PERFORM fencepost.suppressed({name}); END IF;
  END LOOP;
  PERFORM pg_catalog.set_config('fencepost.token', coalesce(before, ''), true);
END"""


def _match(target: Target, values: list[str]) -> str:
    """Write the condition that a row has these values for its key."""
    return " AND ".join(f"r.{quote(k.name)} {_EQ} {value}" for k, value in zip(target.key, values, strict=True))


def _fenced(target: Target, table: str) -> str:
    """Write the condition that the row leaves its mark: the trigger fires (R13)."""
    oid = f"{literal(table)}::pg_catalog.regclass"
    return or_unfenced(target.name, oid, "del", each_time=bool(target.partitions))


def _showing_some(target: Target, table: str, op: str) -> str:
    """Write the DELETE as a text that PL/pgSQL makes of the columns that are shown; its parameters are the key's values
    and the token.
    """
    *given, token = (f"${n}" for n in range(1, len(target.key) + 2))
    row = f"{table} AS r WHERE {_match(target, given)} AND r.{MARK_COLUMN} {op} {token}"
    delete = f"DELETE FROM {row} AND {_fenced(target, table)}"
    return f"""pg_catalog.concat({literal(f"{delete} RETURNING ")}, (
        SELECT pg_catalog.string_agg(pg_catalog.format('%s.%I', CASE
                 WHEN a.attname::pg_catalog.text {_EQ} ANY (shown) THEN 'r' ELSE {literal(f"(NULL::{table})")} END,
                 a.attname), ', ' ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a
         WHERE a.attrelid {_EQ} {literal(table)}::pg_catalog.regclass AND a.attnum {_GT} 0 AND NOT a.attisdropped))"""
