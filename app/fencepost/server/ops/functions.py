"""The functions of one protected table, as text. The comparisons themselves are those of the schema fencepost.

Each table gets trigger functions of its own, with its key columns written out: to_jsonb(NEW) would cost more than the
UPDATE that it guards. How high and how old a token may be, `TokenBounds` writes (R12, R19).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.token import EXTERNAL, Ceiling, Rule
from fencepost.server.ops.checks import Target
from fencepost.server.postgres.row_sql import (
    comparison,
    dollar,
    issued_by,
    literal,
    oldest_of,
    or_unfenced,
    require_issued,
    resource_sql,
)
from fencepost.server.postgres.tables import MARK_COLUMN, quote

# Whose the marks and the floor under a name are, as SQL: tables are renamed, replaced and swapped while nothing
# protects them. The functions are in migrations/schema/names.sql, where the rules are.


def relation(table: str) -> str:
    """Give the oid of a table, which is named as SQL."""
    return f"{literal(table)}::regclass::oid"


def move_marks(table: str, old: str, new: str) -> str:
    """Move the marks and the floor of a table that was renamed to its new name."""
    return f"SELECT fencepost.move_marks({relation(table)}, {literal(old)}, {literal(new)})"


def take_name(table: str, name: str) -> str:
    """Pass on what another table has left under a name, which is this one's from now on."""
    return f"SELECT fencepost.take_name({relation(table)}, {literal(name)})"


def remember(table: str, name: str) -> str:
    """Remember whose floor and marks these are: the table may be renamed before it is protected again. Its rows have
    marks of their own.
    """
    return f"UPDATE fencepost.floors SET relation = {relation(table)}, covers_rows = false WHERE name = {literal(name)}"


# The bounds of a table's tokens in its functions, as text (R12, R19): compared in the writer's own function, and
# bounds.sql is called only to raise. A table that is pinned to a source asks whether the token was issued, and in the
# present generation; one of an external source compares it with the table's ceiling.

# SQL that runs inside other people's sessions names its operators in full, against their search_path.
_GT: Final = "OPERATOR(pg_catalog.>)"
_LT: Final = "OPERATOR(pg_catalog.<)"
_MINUS: Final = "OPERATOR(pg_catalog.-)"


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Writes the bounds of one table. `table`: its name, a literal. `ceiling`: None for a source but the external."""

    table: str
    source: str
    ceiling: Ceiling | None

    def issued(self, resource: str, token: str) -> str:
        """Refuse a token that was never issued, or in an earlier generation; nothing for an external source."""
        if self.source == EXTERNAL:
            return ""
        return f"\n  {self.require_issued(resource, token)}\n  {self.require_current(resource, token)}"

    def beyond(self, token: str, mark: str) -> str:
        """Compare a token with the ceiling, above a mark: constants, in the writer's own function."""
        if self.ceiling is None:
            raise ValueError(f"{self.source} is no source with a ceiling")
        jump = self.ceiling.max_jump
        leap = "" if jump is None else f" OR {token} {_MINUS} {mark} {_GT} '{jump}'::pg_catalog.int8"
        return f"{token} {_GT} '{self.ceiling.max_token}'::pg_catalog.int8{leap}"

    def _arguments(self) -> str:
        if self.ceiling is None:
            raise ValueError(f"{self.source} is no source with a ceiling")
        jump = "NULL" if self.ceiling.max_jump is None else f"'{self.ceiling.max_jump}'"
        return f"'{self.ceiling.max_token}', {jump}"

    def require_reach(self, resource: str, token: str, mark: str, by: str = "require_reach") -> str:
        """Refuse a token above the ceiling. After the mark, whose refusal is more exact where both refuse."""
        return f"""IF {self.beyond(token, mark)} THEN
    PERFORM fencepost.{by}({self.table}, {resource}, {token}, {mark}, {self._arguments()});
  END IF;"""

    def meet_ceiling(self, resource: str, token: str) -> str:
        """The same for a row that was inserted: what it raises is in fencepost.marks, or nowhere."""
        if self.ceiling is None:
            return ""
        return f"""
  IF {self.beyond(token, "0")} THEN
    PERFORM fencepost.meet_ceiling({self.table}, {resource}, {token}, {self._arguments()});
  END IF;"""

    def require_issued(self, resource: str, token: str) -> str:
        """Refuse a token that was never issued. After the mark, whose refusal is more exact where both refuse."""
        # Its SET clause costs more than the comparison: asked only when it will raise.
        return f"""IF {token} {_GT} {issued_by(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""

    def require_current(self, resource: str, token: str) -> str:
        """Refuse a token of an earlier generation (R19). After issued(), which locks the sequence: see oldest()."""
        return f"""IF {token} {_LT} {oldest_of(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""


_EQ: Final = "OPERATOR(pg_catalog.=)"


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


PARTS: Final = ("upd", "ins", "insmark", "del", "delete", "name", "key")
JUDGING: Final = ("upd", "insmark", "del")
"""The functions that judge a token, and so the ones in which source and ceiling make a difference."""

# SQL that runs inside other sessions names its operators in full, against their search_path.
_LE: Final = "OPERATOR(pg_catalog.<=)"
_GE: Final = "OPERATOR(pg_catalog.>=)"
_PINNED: Final = "SET search_path = pg_catalog, pg_temp"
SETTING_GIVEN: Final = "(pg_catalog.current_setting('fencepost.token', true) OPERATOR(pg_catalog.<>) '')"
"""Whether direct SQL has given its token in a setting, which counts before the column (R14)."""


def function_stem(target: Target) -> str:
    """The common start of the table's function names: readable, unique, and short of PostgreSQL's 63 bytes."""
    digest = hashlib.sha256(f"{target.schema}\0{target.relation}".encode()).hexdigest()[:10]
    readable = target.relation.encode()[:36].decode("utf-8", "ignore")
    return f"{readable}_{digest}"


class Functions:
    """Writes the functions of one table."""

    def __init__(self, target: Target, rule: Rule, source: str, ceiling: Ceiling | None = None) -> None:
        self.target = target
        self.rule = rule
        self.source = source
        self.ceiling = None if source != EXTERNAL else ceiling or Ceiling()
        self.table = f"{quote(target.schema)}.{quote(target.relation)}"
        self.stem = function_stem(target)
        self.name = literal(target.name)
        self.bounds = TokenBounds(self.name, source, self.ceiling)

    def function_name(self, part: str) -> str:
        return f"fencepost.{quote(f'{self.stem}_{part}')}"

    def resource(self, record: str) -> str:
        """Render the resource name of NEW, OLD or r.*, by the function that is bound to the key. In a query the row is
        written r.*: a table may have a column r, which a mere r would mean.
        """
        return f"{self.function_name('name')}({record})"

    def key_of(self, record: str) -> list[tuple[str, str]]:
        """List the key's columns of NEW, OLD or r with their types."""
        return [(k.base_name, f"{record}.{quote(k.name)}") for k in self.target.key]

    def create(self) -> list[str]:
        """List what makes the functions, in order. Every statement can be repeated."""
        bodies = self.bodies()

        def trigger_function(part: str, options: str) -> str:
            return (
                f"CREATE OR REPLACE FUNCTION {self.function_name(part)}() RETURNS trigger LANGUAGE plpgsql"
                f" {options} AS {dollar(bodies[part])}"
            )

        arguments = ", ".join(f"k{n} {k.type}" for n, k in enumerate(self.target.key, 1))
        return [
            self.bind("name", resource_sql(self.target.name, self.key_of("r"))),
            self._bind_key(),
            trigger_function("upd", ""),
            trigger_function("ins", _PINNED),
            trigger_function("insmark", f"SECURITY DEFINER {_PINNED}"),
            trigger_function("del", f"SECURITY DEFINER {_PINNED}"),
            self._drop_other_deletes(),
            f"CREATE OR REPLACE FUNCTION {self.function_name('delete')}({arguments}, token bigint, shown text[])"
            f" RETURNS SETOF {self.table}"
            f" LANGUAGE plpgsql AS {dollar(bodies['delete'])}",
            # Triggers fire without this privilege; with it any role could attach a marking function to its own table.
            "REVOKE EXECUTE ON FUNCTION "
            + ", ".join(f"{self.function_name(part)}()" for part in ("upd", "ins", "insmark", "del"))
            + " FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {self.function_name('name')}, {self.function_name('key')},"
            f" {self.function_name('delete')} TO PUBLIC",
            give_functions([self.function_name(part) for part in ("name", "key", *bodies)]),
        ]

    def bind(self, part: str, expression: str) -> str:
        """Make the function that names the resource of a row `r` by an expression. PostgreSQL keeps it parsed: it means
        the columns themselves, whatever they are called later, and keeps them from being dropped or getting another
        type, with other texts for equal values. Nor could another type's owner decide what its cast to text does, in
        our name.
        """
        return (
            f"CREATE OR REPLACE FUNCTION {self.function_name(part)}(r {self.table}) RETURNS text LANGUAGE sql IMMUTABLE"
            f" RETURN {expression}"
        )

    def _bind_key(self) -> str:
        """Make the function that compares the keys of two rows: as it means the columns themselves, names that are
        exchanged do not let a key change. PostgreSQL puts its expression in place of the call.
        """
        same = " AND ".join(f"(n).{quote(k.name)} {_EQ} (o).{quote(k.name)}" for k in self.target.key)
        return (
            f"CREATE OR REPLACE FUNCTION {self.function_name('key')}(n {self.table}, o {self.table}) RETURNS boolean"
            f" LANGUAGE sql IMMUTABLE RETURN {same}"
        )

    def _drop_other_deletes(self) -> str:
        """Drop the function that deletes by a key of other types, or gives the rows of another table. One with the
        present signature stays the same object: a DELETE that has found it, and waits for the table, will call it.
        """
        types = ", ".join([*(k.type for k in self.target.key), "bigint", "text[]"])
        delete = f"{self.function_name('delete')}({types})"
        name = literal(f"{self.stem}_delete")
        return f"SELECT fencepost.drop_other_deletes({literal(self.table)}::regclass, {name}, {literal(delete)})"

    def bodies(self) -> dict[str, str]:
        """Write what each of the functions does, by its part of their names."""
        return {
            "upd": self._update(),
            "ins": self._insert(),
            "insmark": self._inserted(),
            "del": self._deleted(),
            "delete": delete_body(self.target, self.table, self.rule),
        }

    def _update(self) -> str:
        new, old = f"NEW.{MARK_COLUMN}", f"OLD.{MARK_COLUMN}"
        same_key = f"{self.function_name('key')}(NEW, OLD)"
        plain = f"given {_GT} {old} AND {same_key} AND {SETTING_GIVEN} IS NOT TRUE"
        # The column's new value is a token too, even where a setting's is the one that counts.
        if self.ceiling is not None:
            within = f"NOT ({self.bounds.beyond('given', old)})"
            reach = self.bounds.require_reach(self.resource("OLD"), "given", old, by="require_reach_of_row")
            bounds = f"given := greatest(given, {new});\n  {reach}"
        else:
            within = f"given {_LE} {issued_by(self.source)} AND given {_GE} {oldest_of(self.source)}"
            issued = self.bounds.require_issued(self.resource("OLD"), f"greatest(given, {new})")
            bounds = f"{issued}\n  {self.bounds.require_current(self.resource('OLD'), new)}"
        # The plain case first: a token above the mark passes under both rules (fencepost.accepts) and within the
        # bounds (bounds.sql). No SET clause or WHEN: both would cost more than the comparison. The gateway gives -t
        # (`Mark.stored`). The lowest number has no positive one: it is judged, and is malformed.
        return f"""
DECLARE
  given bigint := {new};
BEGIN
  IF given {_LT} 0 AND given {_GT} '-9223372036854775808'::pg_catalog.int8 THEN given := {_MINUS} given; END IF;
  IF {plain} AND {within} THEN
    IF {new} {_LT} 0 THEN {new} := given; END IF;
    RETURN NEW;
  END IF;
  {new} := fencepost.judge_update({self.name}, {self.resource("OLD")}, {literal(self.rule)},
    {old}, {new}, ({same_key}) IS NOT TRUE, OLD.xmin);
  {bounds}
  RETURN NEW;
END"""

    def _insert(self) -> str:
        # Before: find the token and touch no mark, for ON CONFLICT DO NOTHING comes through here as well.
        noted = f"PERFORM fencepost.note_explicit({self.resource('NEW')}, token);"
        note_explicit = f"\n    {noted}" if self.rule == "epoch" else ""
        # The gateway's statement has looked at this, but for the partition that PostgreSQL chooses for the row (R13).
        judged = f"NOT fencepost.fires(TG_RELID, 'zzz_fencepost_insmark') THEN PERFORM fencepost.unfenced({self.name});"
        note_explicit += f"\n    IF {judged} END IF;" if self.target.partitions else ""
        return f"""
DECLARE
  token bigint;
BEGIN
  IF {SETTING_GIVEN} THEN token := fencepost.token_from_setting({self.name}); END IF;
  IF token IS NULL AND NEW.{MARK_COLUMN} < 0 THEN
    IF NEW.{MARK_COLUMN} = '-9223372036854775808' THEN PERFORM fencepost.malformed(NEW.{MARK_COLUMN}::text); END IF;
    token := - NEW.{MARK_COLUMN};{note_explicit}
  END IF;
  NEW.{MARK_COLUMN} := coalesce(token, nullif(NEW.{MARK_COLUMN}, 0));
  IF NEW.{MARK_COLUMN} IS NULL OR current_setting('fencepost.break_glass', true) <> '' THEN
    NEW.{MARK_COLUMN} := coalesce(
      fencepost.mark_behind_glass({self.name}, {self.resource("NEW")}, NEW.{MARK_COLUMN}), NEW.{MARK_COLUMN});
    IF NEW.{MARK_COLUMN} IS NULL THEN
      PERFORM fencepost.enforce('no token', {self.name}, {self.resource("NEW")}, 'INSERT', NULL, NULL);
    END IF;
  END IF;
  RETURN NEW;
END"""

    def _inserted(self) -> str:
        resource, mark = self.resource("NEW"), f"NEW.{MARK_COLUMN}"
        issued = self.bounds.issued(resource, mark)
        # Another trigger, or a function in RETURNING, may have deleted the row before this trigger fires. That leaves a
        # transaction's number in xmax, as an UPDATE or a lock does; and judge_delete's word, which stays.
        return f"""
DECLARE
  gone boolean := false;
BEGIN
  {self._unchanged("NEW")}
  IF NEW.xmax <> '0' THEN
    gone := EXISTS (SELECT FROM fencepost.marks k
                     WHERE k.resource = {resource} AND k.row_absent AND k.xid = pg_current_xact_id());
  END IF;{self.bounds.meet_ceiling(resource, mark)}
  PERFORM fencepost.judge_insert({self.name}, {resource}, {mark}, {literal(self.rule)});{issued}
  IF gone THEN UPDATE fencepost.marks k SET row_absent = true WHERE k.resource = {resource}; END IF;
  RETURN NULL;
END"""

    def _deleted(self) -> str:
        resource, mark = self.resource("OLD"), f"OLD.{MARK_COLUMN}"
        if self.ceiling is not None:
            above = f"\n  {self.bounds.require_reach(resource, 'token', mark)}"
        else:
            above = self.bounds.issued(resource, "token")
        return f"""
DECLARE
  token bigint;
BEGIN
  {self._unchanged("OLD")}
  token := fencepost.judge_delete({self.name}, {resource}, {mark}, {literal(self.rule)}, OLD.xmin);{above}
  RETURN NULL;
END"""

    def _unchanged(self, record: str) -> str:
        """Look at the mark's type before anything reads it: what follows runs in our name, and the table's owner may
        have changed it, and made casts. The key's cannot change, see `bind`.
        """
        strange = f"pg_typeof({record}.{MARK_COLUMN}) <> 'bigint'::regtype"
        return f"IF {strange} THEN PERFORM fencepost.outdated({self.name}); END IF;"


def give_functions(functions: Sequence[str]) -> str:
    """Give functions to the owner of the schema fencepost: in his name they write marks, and no other role may change
    them. Who that is is asked when it runs, which for a printed script may be later and elsewhere.
    """
    named = ", ".join(literal(function) for function in functions)
    return f"SELECT fencepost.give_functions(ARRAY[{named}])"


def drop_functions(stem: str) -> list[str]:
    """Drop a table's functions. Their triggers must be gone, or point at others."""
    return [f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{stem}_{part}')}" for part in PARTS]
