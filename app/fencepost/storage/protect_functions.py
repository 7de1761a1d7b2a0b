"""The functions of one protected table, as text. The comparisons themselves are those of the schema fencepost.

Each table gets trigger functions of its own, with its key columns written out: to_jsonb(NEW) would cost more than the
UPDATE that it guards. Those of a table that is pinned to a source ask in addition whether the token was ever issued
(R12); the others do not know that there is such a thing.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from fencepost.fencing.token import EXTERNAL, Rule
from fencepost.storage.catalog import MARK_COLUMN, quote
from fencepost.storage.protect_check import KEY_TYPES, Target
from fencepost.storage.row_sql import comparison, issued_by, literal, oldest_of, require_issued, resource_sql

PARTS: Final = ("upd", "ins", "insmark", "del", "delete", "name")
JUDGING: Final = ("upd", "insmark", "del")
"""The functions that judge a token, and so the ones in which the source makes a difference."""

# SQL that runs inside other people's sessions names its operators in full, against their search_path.
_EQ: Final = "OPERATOR(pg_catalog.=)"
_GT: Final = "OPERATOR(pg_catalog.>)"
_LE: Final = "OPERATOR(pg_catalog.<=)"
_GE: Final = "OPERATOR(pg_catalog.>=)"
_LT: Final = "OPERATOR(pg_catalog.<)"
_PINNED: Final = "SET search_path = pg_catalog, pg_temp"
SAID_IN_SETTING: Final = "(pg_catalog.current_setting('fencepost.token', true) OPERATOR(pg_catalog.<>) '')"
"""Whether direct SQL has given its token in a setting, which counts before the column (R14)."""


def function_stem(target: Target) -> str:
    """The common start of the table's function names: readable, unique, and short of PostgreSQL's 63 bytes."""
    digest = hashlib.sha256(f"{target.schema}\0{target.relation}".encode()).hexdigest()[:10]
    readable = target.relation.encode()[:36].decode("utf-8", "ignore")
    return f"{readable}_{digest}"


def dollar(body: str) -> str:
    """Quote a function's body with a tag that the body does not contain: a table may be called anything."""
    tag = "$fn$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{body} {tag}"


class Functions:
    """Writes the functions of one table."""

    def __init__(self, target: Target, rule: Rule, source: str) -> None:
        self.target = target
        self.rule = rule
        self.source = source
        self.table = f"{quote(target.schema)}.{quote(target.relation)}"
        self.stem = function_stem(target)
        self.name = literal(target.name)

    def called(self, part: str) -> str:
        """Name one of the table's functions."""
        return f"fencepost.{quote(f'{self.stem}_{part}')}"

    def resource(self, record: str) -> str:
        """Render the resource name of NEW, OLD or r."""
        return resource_sql(self.target.name, [(k.base_name, f"{record}.{quote(k.name)}") for k in self.target.key])

    def create(self) -> list[str]:
        """List what makes the functions, in order. Every statement can be repeated."""
        bodies = self.bodies()

        def trigger_function(part: str, options: str) -> str:
            return (
                f"CREATE OR REPLACE FUNCTION {self.called(part)}() RETURNS trigger LANGUAGE plpgsql"
                f" {options} AS {dollar(bodies[part])}"
            )

        arguments = ", ".join(f"k{n} {k.type}" for n, k in enumerate(self.target.key, 1))
        return [
            # One text whatever the caller's search_path: used where an error names the resource.
            f"CREATE OR REPLACE FUNCTION {self.called('name')}(r {self.table}) RETURNS text"
            f" LANGUAGE plpgsql IMMUTABLE {_PINNED} AS {dollar(bodies['name'])}",
            trigger_function("upd", ""),
            trigger_function("ins", _PINNED),
            trigger_function("insmark", f"SECURITY DEFINER {_PINNED}"),
            trigger_function("del", f"SECURITY DEFINER {_PINNED}"),
            f"DROP FUNCTION IF EXISTS {self.called('delete')}",
            f"CREATE FUNCTION {self.called('delete')}({arguments}, token bigint) RETURNS SETOF {self.table}"
            f" LANGUAGE plpgsql AS {dollar(bodies['delete'])}",
            # Triggers fire without this privilege; with it anybody could hang a marking function on a table of theirs.
            "REVOKE EXECUTE ON FUNCTION "
            + ", ".join(f"{self.called(part)}()" for part in ("upd", "ins", "insmark", "del"))
            + " FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {self.called('name')}, {self.called('delete')} TO PUBLIC",
            give_functions([self.called(part) for part in bodies]),
        ]

    def bodies(self) -> dict[str, str]:
        """Write what each of the functions does, by its part of their names."""
        return {
            "name": self.naming(),
            "upd": self._update(),
            "ins": self._insert(),
            "insmark": self._inserted(),
            "del": self._deleted(),
            "delete": self._delete(),
        }

    def naming(self) -> str:
        """Write what names the resource of a row. Whoever unprotects the table calls it, a superuser maybe."""
        return f"BEGIN {self._unchanged(self._strange_keys('r'))} RETURN {self.resource('r')}; END"

    def _update(self) -> str:
        same_key = " AND ".join(f"NEW.{quote(k.name)} {_EQ} OLD.{quote(k.name)}" for k in self.target.key)
        plain = f"NEW.{MARK_COLUMN} {_GT} OLD.{MARK_COLUMN} AND {same_key} AND {SAID_IN_SETTING} IS NOT TRUE"
        judged = f"""NEW.{MARK_COLUMN} := fencepost.judge_update({self.name}, {self.called("name")}(OLD), \
{literal(self.rule)},
    OLD.{MARK_COLUMN}, NEW.{MARK_COLUMN}, ({same_key}) IS NOT TRUE, OLD.xmin);"""
        # The plain case first, and no SET clause or WHEN: both would cost more than the comparison.
        if self.source == EXTERNAL:
            return f"""
BEGIN
  IF {plain} THEN RETURN NEW; END IF;
  {judged}
  RETURN NEW;
END"""
        # The column's new value is a token too, even where a setting's is the one that counts.
        return f"""
DECLARE
  said bigint;
BEGIN
  IF {plain} AND NEW.{MARK_COLUMN} {_LE} {issued_by(self.source)}
     AND NEW.{MARK_COLUMN} {_GE} {oldest_of(self.source)} THEN
    RETURN NEW;
  END IF;
  said := NEW.{MARK_COLUMN};
  {judged}
  {self._require_issued(f"{self.called('name')}(OLD)", f"greatest(said, NEW.{MARK_COLUMN})")}
  {self._require_current(f"{self.called('name')}(OLD)", f"NEW.{MARK_COLUMN}")}
  RETURN NEW;
END"""

    def _insert(self) -> str:
        # Before: find the token and touch no mark, for ON CONFLICT DO NOTHING comes through here as well.
        said = f"PERFORM fencepost.note_said({self.called('name')}(NEW), token);"
        out_loud = f"\n    {said}" if self.rule == "lease" else ""
        return f"""
DECLARE
  token bigint;
BEGIN
  IF {SAID_IN_SETTING} THEN token := fencepost.given({self.name}); END IF;
  IF token IS NULL AND NEW.{MARK_COLUMN} < 0 THEN
    IF NEW.{MARK_COLUMN} = '-9223372036854775808' THEN PERFORM fencepost.malformed(NEW.{MARK_COLUMN}::text); END IF;
    token := - NEW.{MARK_COLUMN};{out_loud}
  END IF;
  NEW.{MARK_COLUMN} := coalesce(token, nullif(NEW.{MARK_COLUMN}, 0));
  IF NEW.{MARK_COLUMN} IS NULL OR current_setting('fencepost.break_glass', true) <> '' THEN
    NEW.{MARK_COLUMN} := coalesce(
      fencepost.mark_behind_glass({self.name}, {self.called("name")}(NEW), NEW.{MARK_COLUMN}), NEW.{MARK_COLUMN});
    IF NEW.{MARK_COLUMN} IS NULL THEN PERFORM fencepost.refuse({self.called("name")}(NEW), NULL, NULL); END IF;
  END IF;
  RETURN NEW;
END"""

    def _inserted(self) -> str:
        resource, mark = self.resource("NEW"), f"NEW.{MARK_COLUMN}"
        return f"""
BEGIN
  {self._unchanged([self._strange_mark("NEW"), *self._strange_keys("NEW")])}
  PERFORM fencepost.judge_insert({self.name}, {resource}, {mark}, {literal(self.rule)});{self._issued(resource, mark)}
  RETURN NULL;
END"""

    def _deleted(self) -> str:
        resource, mark = self.resource("OLD"), f"OLD.{MARK_COLUMN}"
        given = f"fencepost.given({self.name})"
        return f"""
BEGIN
  {self._unchanged([self._strange_mark("OLD"), *self._strange_keys("OLD")])}
  PERFORM fencepost.judge_delete({self.name}, {resource}, {mark}, {literal(self.rule)}, OLD.xmin);\
{self._issued(resource, given)}
  RETURN NULL;
END"""

    def _unchanged(self, strange: list[str]) -> str:
        """Look at the columns' types before anything reads them: what follows runs in our name, and the table's owner
        may have changed them, and made casts.
        """
        return f"IF {' OR '.join(strange)} THEN PERFORM fencepost.outdated({self.name}); END IF;" if strange else ""

    @staticmethod
    def _strange_mark(record: str) -> str:
        return f"pg_typeof({record}.{MARK_COLUMN}) <> 'bigint'::regtype"

    def _strange_keys(self, record: str) -> list[str]:
        """Enums not: they are read by their output function, which is nobody's."""
        types = [f"pg_typeof({record}.{quote(k.name)})::oid" for k in self.target.key if k.base_name in KEY_TYPES]
        return [f"{of} >= 16384 AND NOT fencepost.is_builtin({of})" for of in types]

    def _issued(self, resource: str, token: str) -> str:
        if self.source == EXTERNAL:
            return ""
        return f"\n  {self._require_issued(resource, token)}\n  {self._require_current(resource, token)}"

    def _require_issued(self, resource: str, token: str) -> str:
        """Refuse a token that was never issued. After the mark, which says more where both refuse."""
        # Its SET clause costs more than the comparison: asked only when it will raise.
        return f"""IF {token} {_GT} {issued_by(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""

    def _require_current(self, resource: str, token: str) -> str:
        """Refuse a token of an earlier generation (R19). After issued(), which locks the sequence: see oldest()."""
        return f"""IF {token} {_LT} {oldest_of(self.source)} THEN
    PERFORM {require_issued(self.source, resource, token)};
  END IF;"""

    def _delete(self) -> str:
        """The gateway's DELETE in one round trip: the token is bound to this table, and is taken back at its end."""
        op = f"OPERATOR(pg_catalog.{comparison(self.rule)})"
        match = " AND ".join(f"r.{quote(k.name)} {_EQ} k{n}" for n, k in enumerate(self.target.key, 1))
        return f"""
#variable_conflict use_variable
DECLARE
  before pg_catalog.text := pg_catalog.current_setting('fencepost.token', true);
BEGIN
  IF NOT EXISTS (SELECT FROM fencepost.protected p
                  WHERE p.relation {_EQ} {literal(self.table)}::pg_catalog.regclass) THEN
    PERFORM fencepost.outdated({self.name});
  END IF;
  PERFORM pg_catalog.set_config('fencepost.token', pg_catalog.concat({self.name}, '=', token), true);
  FOR round IN 1..10 LOOP
    RETURN QUERY DELETE FROM {self.table} AS r WHERE {match} AND r.{MARK_COLUMN} {op} token RETURNING r.*;
    EXIT WHEN FOUND;
    -- Not there, or refused by its mark: that is for the caller to ask. There, and it would pass or a trigger has just
    -- written it: made anew meanwhile, so again; or kept from being deleted, and then nothing may remain of it.
    PERFORM FROM {self.table} AS r WHERE {match} AND (r.{MARK_COLUMN} {op} token OR fencepost.ours(r.xmin));
    EXIT WHEN NOT FOUND;
    IF round {_EQ} 10 THEN PERFORM fencepost.suppressed({self.name}); END IF;
  END LOOP;
  PERFORM pg_catalog.set_config('fencepost.token', coalesce(before, ''), true);
END"""


def give_functions(functions: Sequence[str]) -> str:
    """Give functions to the owner of the schema fencepost: in his name they write marks, and nobody else may change
    them. Who that is is asked when it runs, which for a printed script may be later and elsewhere.
    """
    named = ", ".join(literal(function) for function in functions)
    body = f"""
DECLARE
  called text;
BEGIN
  FOREACH called IN ARRAY ARRAY[{named}] LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', called,
                   (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'fencepost'));
  END LOOP;
END"""
    return "DO " + dollar(body)


def drop_functions(stem: str) -> list[str]:
    """Drop a table's functions. Their triggers must be gone, or point at others."""
    return [f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{stem}_{part}')}" for part in PARTS]
