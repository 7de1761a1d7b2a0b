"""The catalog: tables as the gateway sees them. Columns, fence, the code that writes run, what roles may do."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Self, TypeVar, TypeVarTuple, Unpack

import asyncpg

from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import EXTERNAL, Ceiling, Rule
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.database_identity import Known
from fencepost.server.postgres.errors import StorageError
from fencepost.server.times import TIMES, Times

# The database's tables as the gateway sees them: read from pg_catalog, never from a model.
#
# A Catalog is one consistent, immutable picture. A request that finds it outdated asks for a newer one
# (`postgres/catalog_cache.py`).

MARK_COLUMN = "last_fence_token"
MARK_CHECK: Final = "fencepost_mark"
"""The name of the check on that column: it refuses what the triggers have not judged."""
MOST_PLANS: Final = 256
"""How many plans are kept for a table."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TableKind = Literal["table", "partitioned table", "view", "materialized view", "foreign table"]


def quote(name: str) -> str:
    """Quote an identifier. Every identifier in our SQL comes through here, and from the catalog."""
    return '"' + name.replace('"', '""') + '"'


_OF_NUMBERS: Final = frozenset({"numeric", "jsonb", "numrange", "nummultirange"}) | frozenset(
    {"_numeric", "_jsonb", "_numrange", "_nummultirange"}
)
"""Types of PostgreSQL's own whose values have numbers of any length."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    `type` is the full type as SQL writes it, schema-qualified; `base_type` is the same without domain and length, what
    a filter's value is cast to (a cast to varchar(3) would silently truncate it); `base_name` is pg_type's name of it
    (`int4`, `_text` for an array), for code that must distinguish types.
    """

    name: str
    type: str
    base_type: str
    base_name: str
    nullable: bool
    default: str | None
    generated: bool
    identity: Literal["", "always", "by default"]
    comment: str | None
    enum_labels: tuple[str, ...] = ()
    max_length: int | None = None
    collation: str | None = None
    """As SQL writes it, qualified and quoted; None: the database's own, or none at all."""
    with_hstores: bool = False
    """Whether values are hstores, or arrays or composites that may have some."""

    type_oid: int = 0
    """The oid of its type; a domain has its own. Names of types change, and lie in schemas that a role may not use."""

    number: int = 0
    """Its number in the table, which it has for good. Names may be exchanged."""

    has_parts: bool = False
    """Whether values are arrays or composites, or become json by a cast of their type's own, as hstores do."""

    @property
    def expands(self) -> bool:
        """Whether a short value may have a long text, because it has numbers: `1e131071` has 131,072 digits."""
        return self.base_name in _OF_NUMBERS or (self.has_parts and "." in self.base_type)

    @property
    def takes_path(self) -> bool:
        """Whether a JSON path leads into values: of anything else it would be null, and `is.null` true of every row."""
        return self.base_name in {"json", "jsonb"} or self.is_array or self.has_parts

    @property
    def is_array(self) -> bool:
        """Whether values are arrays (any number of dimensions)."""
        return self.base_name.startswith("_")


@dataclass(frozen=True, slots=True)
class Fence:
    """How a table is protected. `broken` says in a phrase why the fence does not hold any more, because its triggers or
    its column are gone for example; empty: it holds. Where it does not, writes are refused.
    """

    name: str
    rule: Rule
    source: str
    delete_function: str
    broken: str = ""
    requires_key: bool = False
    """Whether the gateway wants an Idempotency-Key with every write (R16)."""
    scope: Scope | None = None
    """What rows share one mark (R8); None: each row has its own."""

    verify: bool = False
    """Whether the source is asked about tokens that are not known to be issued (R12)."""
    ceiling: Ceiling | None = None
    """How high a token may be, where the source is external; None: the source knows what it has issued."""

    sealed: bool = False
    """Whether the gateway takes sealed tokens only, and only for what their seals are bound to."""
    work: bool = False
    """Whether workers take the table's rows, the next one each time."""
    max_attempts: int | None = None
    """How often a row may be taken before it is put aside; None: any number of times."""
    on_exhausted: str = ""
    """What puts it aside: the JSON of an object, as the body of a PATCH of the row; empty without `max_attempts`."""
    deletes_own_rows: bool = False
    """Whether a DELETE of one row may reach other rows of the table, by foreign keys."""

    key: str = ""
    """What the names of resources are rendered from, as fencepost.key_of has it."""
    has_versions: bool = field(init=False)
    """Whether each write gives its row another mark, so that the mark tells one version of the row from another: not
    under epoch, where a token writes a row several times, and not where the mark is a scope's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_versions", self.rule == "strict" and self.scope is None and self.intact)

    @property
    def intact(self) -> bool:
        return not self.broken

    @property
    def pinned(self) -> bool:
        """Whether the table takes tokens of one known source only, so that how far it got is known."""
        return self.source != EXTERNAL

    @property
    def prefix(self) -> str:
        """What stands before the slash in the names of what its marks judge: its rows, or their scopes."""
        return self.name if self.scope is None else self.scope.prefix

    @property
    def queue(self) -> str | None:
        """The queue that takes all the table's writes; None: there is none, and its tokens are those of a lock."""
        return self.source if ":" in self.source else None


@dataclass(frozen=True)
class Table:
    """A table or view. `name` is what the API calls it: `orders`, or `sales.orders` outside the schema public."""

    oid: int
    schema: str
    relation: str
    name: str
    kind: TableKind
    comment: str | None
    row_security: bool
    columns: Mapping[str, Column]
    key: tuple[str, ...]
    fence: Fence | None = None
    expanding: frozenset[str] = frozenset()
    """Columns with short values that may have long texts (`Column.expands`)."""
    lossy_key: bool = False
    """Whether a key value may change on its way into the column: numeric(5,2), timestamp(0)."""
    key_constraint: str | None = None
    """The primary key's name, as an error names it."""
    key_index: int | None = None
    """The oid of the primary key's index: another key, or the same columns in another order, has another one."""
    may_suppress: bool = False
    """Whether a BEFORE UPDATE trigger or rule that is not ours may keep a row from being written."""
    shares_transactions: bool = False
    """Whether its writes run no code but ours, and triggers and policies that see their own row only
    (trigger_reader.py, POLICIES_SEE_MORE), so that several operations may share a transaction unseen.
    """
    trigger_functions: tuple[tuple[int, str], ...] = ()
    """The functions of these triggers: the oid, and the MD5 of what pg_get_functiondef gave. A function that is
    replaced keeps its oid, and no notification reports it: statements compare.
    """
    triggers_are_vouched_for: bool = False
    """Whether it shares transactions because its owner vouches for triggers that are not understood (`protect
    --triggers-see-own-row`). What they leave in a session is undone after each batch.
    """
    shows_caller: bool = True
    """Whether a write may run something that sees the settings of its session, and so who calls: writes of several
    callers with one role share no transaction then.
    """
    runs_code: bool = False
    """Whether a write may run code of users' (triggers, functions in defaults), which may change its session."""
    reads_run_code: bool = False
    """Whether a read may: a view, a policy, a cast or a domain's check calls a function of theirs."""
    deletes_reach_further: bool = False
    """Whether a DELETE may write to other tables, by a foreign key's ON DELETE."""
    updates_reach_further: frozenset[str] = frozenset()
    """Columns that an UPDATE changes in other tables too, by a foreign key's ON UPDATE; all, if one of them is made of
    others.
    """
    reached: tuple[tuple[int, str, bool], ...] = ()
    """The protected tables, other than itself, to which a foreign key's action may lead from a row that is deleted, or
    whose key is changed: oid, name, and whether they have a scope.
    """
    refers: frozenset[int] = frozenset()
    """The tables, by their oids, that foreign keys of it lead to; itself may be one of them."""
    fingerprint: str = ""
    """Changes with whatever of the table the statements depend on."""
    unique_columns: frozenset[str] = field(default_factory=frozenset)
    """Columns of any unique index: setting one takes FOR UPDATE rather than FOR NO KEY UPDATE."""
    plans: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)
    """What use cases have made of the table, for as long as this picture of it holds."""

    def kept(self, make: Callable[[Self, Unpack[Ts]], T], *of: *Ts) -> T:
        """Return what `make` makes of the table and these values. It is made once, and kept under the function and the
        values, so it is to be a module's function: what else it used could be another request's. Requests choose the
        values, so there may be too many.
        """
        name = (make, *of)
        if name not in self.plans:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            self.plans[name] = make(self, *of)
        found: T = self.plans[name]
        return found

    @cached_property
    def sql_name(self) -> str:
        """The qualified, quoted name."""
        return f"{quote(self.schema)}.{quote(self.relation)}"

    @cached_property
    def visible(self) -> tuple[str, ...]:
        """The columns that `*` means: all but the mark of a protected table."""
        return tuple(c for c in self.columns if c != MARK_COLUMN)


@dataclass(frozen=True)
class ProtectedTable(Table):
    """A table with an intact fence: what can be written to (R13). Statements of writes take no other."""

    fence: Fence


@dataclass(frozen=True)
class Served:
    """What of the database a gateway serves: the tables of these schemas (empty: all of the user's), of these names as
    the API has them (empty: all), and whether that includes tables and views that are not protected, which can be read
    only.
    """

    schemas: tuple[str, ...] = ()
    tables: frozenset[str] = frozenset()
    unprotected: bool = True

    def has(self, name: str) -> bool:
        """Whether a table of this name would be served."""
        return not self.tables or name.removeprefix("public.") in self.tables


EVERYTHING: Final = Served()


@dataclass(frozen=True)
class Catalog:
    """One picture of the database. `version` rises with each load that finds another one; `begun` is when the load
    began (loop time, seconds).
    """

    version: int
    tables: Mapping[str, Table]
    begun: float = 0.0
    unprotected: bool = True
    """Whether tables that are not protected are read."""

    def runs_new_code(self, before: "Catalog") -> bool:
        """Whether users' code runs at a table of an earlier picture where it did not."""
        return any(
            (table.runs_code, table.reads_run_code) > (old.runs_code, old.reads_run_code)
            for name, table in self.tables.items()
            if (old := before.tables.get(name)) is not None
        )

    def reads(self, table: Table) -> bool:
        return self.unprotected or table.fence is not None

    @cached_property
    def shown(self) -> tuple[Table, ...]:
        return tuple(table for table in self.tables.values() if self.reads(table))

    @cached_property
    def scopes(self) -> Mapping[str, tuple[Table, ...]]:
        """The tables of each scope, by the scope's prefix."""
        found: dict[str, list[Table]] = {}
        for table in self.tables.values():
            if table.fence is not None and table.fence.scope is not None:
                found.setdefault(table.fence.scope.prefix, []).append(table)
        return {prefix: tuple(tables) for prefix, tables in found.items()}

    @cached_property
    def related(self) -> Mapping[int, int]:
        """For each table, by its oid, the least oid of those that foreign keys, or a scope, join it with, over others
        too.
        """
        least = {table.oid: table.oid for table in self.tables.values()}

        def of(oid: int) -> int:
            while least[oid] != oid:
                oid = least[oid]
            return oid

        joined = [(table.oid, referred) for table in self.tables.values() for referred in table.refers & least.keys()]
        joined += [(sharing[0].oid, table.oid) for sharing in self.scopes.values() for table in sharing]
        for pair in joined:
            ends = sorted((of(pair[0]), of(pair[1])))
            least[ends[1]] = ends[0]
        return {oid: of(oid) for oid in least}

    @cached_property
    def entangled(self) -> frozenset[int]:
        """The tables, by their oids, a write to one row of which may concern any row of the table, or of one that
        shares its scope: users' code runs, or foreign keys lead from rows of these tables to others of them.
        """
        found: set[int] = set()
        for table in self.tables.values():
            scope = table.fence.scope if table.fence is not None else None
            sharing = (table,) if scope is None else self.scopes[scope.prefix]
            oids = {each.oid for each in sharing}
            if any(
                not each.refers.isdisjoint(oids)
                or not each.shares_transactions
                or (each.fence is not None and each.fence.deletes_own_rows)
                or any(oid in oids for oid, _, _ in each.reached)
                for each in sharing
            ):
                found.add(table.oid)
        return frozenset(found)

    def find(self, name: str) -> Table | None:
        """Find a table by its API name; `public.orders` is `orders`."""
        table = self.tables.get(name)
        if table is None and name.startswith("public."):
            table = self.tables.get(name.removeprefix("public."))
            return table if table is not None and table.schema == "public" else None
        return table

    def find_or_scope(self, name: str) -> Table | None:
        """Find a table by its API name, or one that shares the scope of this name: no name means both."""
        sharing = self.scopes.get(name)
        return sharing[0] if sharing else self.find(name)


# Which text of a value is the canonical one, as far as that is known without PostgreSQL: 7 and 07 are one row.

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _integer_of(bits: int) -> Callable[[str], bool]:
    most = 2 ** (bits - 1)
    return lambda text: _INTEGER.fullmatch(text) is not None and -most <= int(text) < most


def _any_text(_: str) -> bool:
    return True


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


_CANONICAL: Final[dict[str, Callable[[str], bool]]] = {
    "text": _any_text,
    "varchar": _any_text,
    "int2": _integer_of(16),
    "int4": _integer_of(32),
    "int8": _integer_of(64),
    "uuid": _is_uuid,
}
"""By a key column's type: whether a text is canonical for certain."""


def is_canonical(table: Table, key: Sequence[str], columns: Sequence[str] | None = None) -> bool:
    """Whether the texts of a key are certainly the canonical ones of values of its columns. There are as many.
    `columns`: others than those of the key.
    """
    for column, value in zip(table.key if columns is None else columns, key, strict=True):
        canonical = _CANONICAL.get(table.columns[column].base_name)
        if canonical is None or not canonical(value):
            return False
    return True


# The columns of tables, read from pg_catalog.

_IDENTITY: Final[dict[str, Literal["", "always", "by default"]]] = {"": "", "a": "always", "d": "by default"}

# base: the type below all domains; a domain may lie over a domain. with_hstores: hstore and what is made of it.
COLUMNS: Final = """
WITH RECURSIVE base(oid, below, typmod, not_null) AS (
  SELECT t.oid, t.oid, -1, false FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype, t.typtypmod, b.not_null OR t.typnotnull
    FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
), with_hstores(oid) AS (
  SELECT t.oid FROM pg_type t WHERE t.typname = 'hstore' AND t.typtype = 'b'
  UNION
  SELECT t.oid FROM with_hstores h JOIN pg_type t
      ON t.typlen = -1 AND t.typelem = h.oid OR t.typbasetype = h.oid
      OR t.typrelid IN (SELECT a.attrelid FROM pg_attribute a WHERE a.atttypid = h.oid AND a.attnum > 0)
)
SELECT a.attrelid::int8 AS oid, a.attname::text AS name, a.attnum AS number, a.atttypid::int8 AS type_oid,
       format_type(a.atttypid, a.atttypmod) AS type, format_type(bt.oid, -1) AS base_type,
       bt.typname::text AS base_name, a.attnotnull OR base.not_null AS not_null,
       d.oid IS NOT NULL AS has_default, a.attgenerated <> '' AS generated, a.attidentity::text AS identity,
       col_description(a.attrelid, a.attnum) AS comment,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e
         WHERE e.enumtypid = CASE WHEN bt.typelem <> 0 AND bt.typlen = -1 THEN bt.typelem ELSE bt.oid END)
         AS enum_labels,
       (SELECT format('%I.%I', ln.nspname, l.collname) FROM pg_collation l
          JOIN pg_namespace ln ON ln.oid = l.collnamespace
         WHERE l.oid = a.attcollation AND l.collprovider <> 'd') AS collation,
       CASE WHEN bt.typname IN ('varchar', 'bpchar')
            THEN nullif(greatest(a.atttypmod, base.typmod) - 4, -5) END AS max_length,
       EXISTS (SELECT FROM with_hstores h WHERE h.oid = bt.oid) AS with_hstores,
       bt.typcategory IN ('A', 'C') OR EXISTS (SELECT FROM pg_cast k WHERE k.castsource = bt.oid
         AND k.casttarget IN ('json'::regtype, 'jsonb'::regtype)) AS has_parts,
       greatest(a.atttypmod, base.typmod) >= 0
         AND bt.typname IN ('numeric', 'timestamp', 'timestamptz', 'time') AS lossy
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND (cardinality($1::text[]) = 0 OR n.nspname = ANY($1))
 ORDER BY a.attrelid, a.attnum"""

# pg_get_expr takes the table's lock since PostgreSQL 18: asked apart, and left out where it is locked.
DEFAULTS: Final = """
SELECT d.adrelid::int8 AS oid, a.attname::text AS name, pg_get_expr(d.adbin, d.adrelid) AS expression
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class c ON c.oid = d.adrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')"""

UNKNOWN_DEFAULT: Final = "…"
"""Stands for a default whose expression could not be read."""


def column_of(row: asyncpg.Record, expression: str | None) -> Column:
    """Make a column of a row of COLUMNS. `expression`: its default."""
    return Column(
        name=row["name"],
        type=row["type"],
        base_type=row["base_type"],
        base_name=row["base_name"],
        nullable=not row["not_null"],
        default=(expression or UNKNOWN_DEFAULT) if row["has_default"] and not row["generated"] else None,
        generated=row["generated"],
        identity=_IDENTITY[row["identity"]],
        comment=row["comment"],
        enum_labels=tuple(row["enum_labels"] or ()),
        max_length=row["max_length"],
        collation=row["collation"],
        with_hstores=row["with_hstores"],
        type_oid=row["type_oid"],
        number=row["number"],
        has_parts=row["has_parts"],
    )


# SQL for what else a write to a table (pg_class c) may do, or be kept from: triggers, rules, functions, keys.

# Not pg_class.relhasrules, which stays when the last rule is dropped. A view's own rule is one on SELECT (1).
HAS_RULES: Final = """
EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND w.ev_type <> '1' AND w.ev_enabled <> 'D')"""

# The first two bits of tgtype are ROW and BEFORE, the fifth is UPDATE. A partition may have triggers of its own.
SUPPRESSES: Final = f"""
{HAS_RULES} AND c.relkind IN ('r', 'p') OR EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
   WHERE NOT t.tgisinternal AND t.tgtype & 19 = 19 AND t.tgenabled <> 'D'
     AND NOT starts_with(t.tgname, 'zzz_fencepost_'))
"""

# What depends on the role alone (current_user) needs no look: a batch has one role. Keys and indexes take IMMUTABLE
# functions only.
#   part    the table and its partitions
#   thing   what a write to it may look at or run, by pg_depend: views and policies, what these read, types and what
#           they are made of, domains' checks; `reading`: a read may, too
#   tree    expressions of these. The functions that they call are read from there: pg_depend does not name functions of
#           PostgreSQL's own
CALLS: Final = r"""
(WITH RECURSIVE part(oid) AS (
   SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid),
 thing(class, oid, reading) AS (
   SELECT 'pg_class'::regclass, part.oid, true FROM part
   UNION
   SELECT x.class, x.oid, thing.reading AND x.reading FROM thing CROSS JOIN LATERAL (
     SELECT 'pg_attrdef'::regclass, d.oid, false FROM part JOIN pg_attrdef d ON d.adrelid = part.oid
      WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass
     UNION ALL SELECT 'pg_constraint'::regclass, k.oid, false FROM part
                 JOIN pg_constraint k ON k.conrelid = part.oid AND k.conbin IS NOT NULL
                WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass
     UNION ALL SELECT 'pg_trigger'::regclass, t.oid, false FROM part
                 JOIN pg_trigger t ON t.tgrelid = part.oid AND NOT starts_with(t.tgname, 'zzz_fencepost_')
                WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass AND t.tgqual IS NOT NULL
     UNION ALL SELECT 'pg_rewrite'::regclass, w.oid, true FROM pg_rewrite w
                WHERE w.ev_class = thing.oid AND thing.class = 'pg_class'::regclass AND w.ev_type = '1'
     UNION ALL SELECT 'pg_policy'::regclass, y.oid, true FROM pg_policy y JOIN pg_class r ON r.oid = y.polrelid
                WHERE y.polrelid = thing.oid AND thing.class = 'pg_class'::regclass AND r.relrowsecurity
     UNION ALL SELECT 'pg_type'::regclass, a.atttypid, true FROM pg_attribute a
                WHERE a.attrelid = thing.oid AND thing.class = 'pg_class'::regclass AND a.attnum > 0
                  AND NOT a.attisdropped
     UNION ALL SELECT 'pg_type'::regclass, of.oid, true FROM pg_type t CROSS JOIN LATERAL (
                 VALUES (t.typbasetype), (t.typelem)
                 UNION ALL SELECT a.atttypid FROM pg_attribute a
                            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)) AS of(oid)
                WHERE t.oid = thing.oid AND thing.class = 'pg_type'::regclass
     UNION ALL SELECT 'pg_constraint'::regclass, k.oid, true FROM pg_constraint k
                WHERE k.contypid = thing.oid AND thing.class = 'pg_type'::regclass
     UNION ALL SELECT d.refclassid::regclass, d.refobjid, true FROM pg_depend d
                WHERE d.classid = thing.class AND d.objid = thing.oid
                  AND d.refclassid IN ('pg_class'::regclass, 'pg_type'::regclass)
                  AND thing.class IN ('pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_trigger'::regclass,
                                      'pg_rewrite'::regclass, 'pg_policy'::regclass)) AS x(class, oid, reading)
    WHERE x.oid <> 0),
 tree(text, reading) AS (
   SELECT d.adbin::text, reading FROM thing JOIN pg_attrdef d ON (class, thing.oid) = ('pg_attrdef'::regclass, d.oid)
   UNION ALL SELECT k.conbin::text, reading FROM thing
               JOIN pg_constraint k ON (class, thing.oid) = ('pg_constraint'::regclass, k.oid)
   UNION ALL SELECT t.tgqual::text, reading FROM thing
               JOIN pg_trigger t ON (class, thing.oid) = ('pg_trigger'::regclass, t.oid)
   UNION ALL SELECT w.ev_action::text, reading FROM thing
               JOIN pg_rewrite w ON (class, thing.oid) = ('pg_rewrite'::regclass, w.oid)
   UNION ALL SELECT concat(y.polqual, y.polwithcheck), reading FROM thing
               JOIN pg_policy y ON (class, thing.oid) = ('pg_policy'::regclass, y.oid)
   UNION ALL SELECT t.typdefaultbin::text, false FROM thing
               JOIN pg_type t ON (class, thing.oid) = ('pg_type'::regclass, t.oid)),
 called(oid, reading) AS (
   SELECT found[1]::oid, tree.reading
     FROM tree
    CROSS JOIN LATERAL regexp_matches(tree.text, ':(?:(?:op)?funcid|aggfnoid|winfnoid) (\d+)', 'g') AS found
   UNION ALL
   SELECT k.castfunc, true FROM thing
     JOIN pg_cast k ON thing.oid IN (k.castsource, k.casttarget) AND k.castfunc <> 0
    WHERE thing.class = 'pg_type'::regclass)
 SELECT coalesce(bool_or(f.provolatile <> 'i' AND CASE WHEN f.oid < 16384
          THEN f.proname = 'current_setting' OR x.is_code
          ELSE NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                            WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
                              AND d.refclassid = 'pg_extension'::regclass
                              AND e.extname IN ('uuid-ossp', 'pgcrypto')) END), false) AS shows_caller,
        coalesce(bool_or(x.is_code), false) AS runs_functions,
        coalesce(bool_or(x.is_code AND called.reading), false) AS reads_run_functions
   FROM called JOIN pg_proc f ON f.oid = called.oid JOIN pg_language l ON l.oid = f.prolang
  CROSS JOIN LATERAL (SELECT CASE WHEN f.oid < 16384
     THEN f.proname IN ('set_config', 'ts_rewrite', 'ts_stat') OR f.proname LIKE '%to\_xml%'
       OR f.proname LIKE 'pg\_%advisory\_lock%' OR f.proname LIKE 'pg\_replication\_origin\_%'
     ELSE f.prokind = 'a' OR f.provolatile <> 'i' AND l.lanname NOT IN ('c', 'internal') END AS is_code) AS x)
"""
"""Asks what the functions may do that a table's expressions call.

shows_caller         one reads settings of the session. Of PostgreSQL's own few do, or run SQL. Of others only IMMUTABLE
                     ones cannot, and those of two extensions that make values by chance
runs_functions       one may change the session: code that somebody wrote in SQL or another language, and that is not
                     IMMUTABLE; set_config, what runs SQL, and what takes locks for a session
reads_run_functions  the same of those that a read calls
"""

DEFINITION: Final = (
    "pg_catalog.replace(pg_catalog.pg_get_functiondef({}), ' RETURNS pg_catalog.trigger', ' RETURNS trigger')"
)
"""The text of a trigger's function, the same under each search_path: a table may have the name `trigger`."""

# The user's triggers on the table c, and on its partitions, as JSON: what trigger_reader.Trigger has, in its order.
# Functions are shown as they are now, whatever the snapshot: what is read is what is compared.
# What is not ASCII may be no text for us (SQL_ASCII): outside of constants and comments a $ is not read.
TRIGGERS: Final = rf"""
(WITH RECURSIVE part(oid) AS (
   SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
 SELECT jsonb_agg(DISTINCT jsonb_build_array(
          t.tgfoid::int8, CASE WHEN getdatabaseencoding() = 'UTF8' THEN shown.definition
            ELSE regexp_replace(shown.definition, '[^\x01-\x7f]', '$', 'g') END,
          md5(shown.definition), string_to_array(encode(t.tgargs, 'escape'), '\000'),
          t.tgtype & 67 = 3,
          t.tgqual IS NULL OR t.tgqual::text !~ 'ROWCOMPARE|SUBLINK|COERCETODOMAIN|:varattno -' AND NOT EXISTS (
            SELECT FROM regexp_matches(t.tgqual::text, ':(?:(?:op)?funcid|aggfnoid|winfnoid) (\d+)', 'g') AS found
              LEFT JOIN pg_proc q ON q.oid = found[1]::oid AND q.oid < 16384 AND q.provolatile = 'i'
             WHERE q.oid IS NULL),
          t.tgtype & 28 = 8, t.tgtype & 1 = 1 AND NOT t.tgdeferrable))::text
   FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
  CROSS JOIN LATERAL (SELECT {DEFINITION.format("t.tgfoid")} AS definition OFFSET 0) AS shown
  WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 28 <> 0
    AND NOT starts_with(t.tgname, 'zzz_fencepost_'))
"""

# What takes a type of somebody's own is not meant where columns have types of PostgreSQL's, or enums, or domains; but a
# constant in quotes may be of any type. So it counts where it is code (see CALLS).
SHADOWED: Final = """
WITH own(oid) AS (
  SELECT y.oid FROM pg_type y WHERE y.oid >= 16384 AND y.typtype NOT IN ('d', 'e') AND NOT EXISTS (
    SELECT FROM pg_cast k JOIN pg_type s ON s.oid = k.castsource AND (s.oid < 16384 OR s.typtype = 'e')
     WHERE k.casttarget = y.oid AND k.castcontext = 'i')),
 apart(oid) AS (
  SELECT f.oid FROM pg_proc f JOIN pg_language l ON l.oid = f.prolang
   CROSS JOIN LATERAL unnest(f.proargtypes) AS given(type) JOIN own ON own.oid = given.type
   WHERE f.oid >= 16384 AND (f.provolatile = 'i' OR l.lanname IN ('c', 'internal')))
SELECT o.oprname::text AS name FROM pg_operator o
 WHERE o.oid >= 16384 AND o.oprname = ANY($1::text[]) AND NOT EXISTS (SELECT FROM apart WHERE apart.oid = o.oprcode)
UNION SELECT f.proname::text FROM pg_proc f
 WHERE f.oid >= 16384 AND f.proname = ANY($1::text[]) AND NOT EXISTS (SELECT FROM apart WHERE apart.oid = f.oid)
UNION SELECT y.typname::text FROM pg_type y
 WHERE y.oid >= 16384 AND y.typname = ANY($1::text[])
UNION SELECT '::' FROM pg_cast k WHERE k.castfunc >= 16384 AND NOT EXISTS (
  SELECT FROM pg_type y WHERE y.oid IN (k.castsource, k.casttarget) AND y.oid >= 16384 AND y.typtype <> 'e')
"""
"""Which of these names could mean something else than PostgreSQL's own, whatever the search_path is; `::`: casts,
of enums too."""

RUNS_OTHER_CODE: Final = f"""
(calls.runs_functions OR c.relkind NOT IN ('r', 'p') OR {HAS_RULES})
"""
"""Whether a write to the table c runs code of its owner's that may change the session, beside triggers. `calls` are its
CALLS."""

# A policy that reads tables, or calls a function that may (what is not IMMUTABLE, but for those that read settings and
# the time), could be told by a neighbour's write that it is not alone; so could one that reads the system columns of
# transactions (xmin to cmax). The functions that compare rows, and those behind a type that SQL/JSON returns, are named
# nowhere in the tree.
POLICIES_SEE_MORE: Final = r"""
EXISTS (SELECT FROM pg_policy y CROSS JOIN LATERAL concat(y.polqual, y.polwithcheck) AS tree
  WHERE y.polrelid = c.oid AND c.relrowsecurity
    AND (tree ~ '\{(SUBLINK|ROWCOMPARE|JSONEXPR)|:varattno -[2-5]' OR EXISTS (
    SELECT FROM regexp_matches(tree, ':(?:(?:op)?funcid|aggfnoid|winfnoid) (\d+)', 'g') AS found
      JOIN pg_proc f ON f.oid = found[1]::oid
     WHERE f.provolatile <> 'i' AND NOT (f.oid < 16384 AND f.proname IN (
       'current_setting', 'now', 'clock_timestamp', 'statement_timestamp', 'transaction_timestamp')))))
"""
"""Whether a policy of the table c looks at more than its row, constants, role and settings."""

# ON CONFLICT DO NOTHING takes no deferrable constraint, and keeps what a function in a DEFAULT has written.
SHARES: Final = f"""
NOT {POLICIES_SEE_MORE} AND NOT {RUNS_OTHER_CODE}
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate)
"""
"""Whether writes to the table c may share transactions, if its triggers let them."""

# A foreign key may lead to a partition, or from one.
_REFERRED: Final = """
(k.confrelid = c.oid OR c.relkind = 'p' AND k.confrelid IN (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT part.oid FROM part))
"""
# CASCADE, SET NULL, SET DEFAULT
REACHES: Final = f"""
EXISTS (SELECT FROM pg_constraint k WHERE {_REFERRED} AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd'))
"""
_ROOT_OF_REFERRING: Final = "coalesce(pg_partition_root(k.conrelid)::oid, k.conrelid)"
_ROOT_OF_REFERRED: Final = "coalesce(pg_partition_root(k.confrelid)::oid, k.confrelid)"
REACHES_ITSELF: Final = f"""
p.relation::oid IN (
  WITH RECURSIVE reached(oid) AS (
    SELECT {_ROOT_OF_REFERRING} FROM pg_constraint k
     WHERE {_ROOT_OF_REFERRED} = p.relation::oid AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
    UNION SELECT {_ROOT_OF_REFERRING} FROM reached r JOIN pg_constraint k ON {_ROOT_OF_REFERRED} = r.oid
     WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
  SELECT r.oid FROM reached r)
"""
"""Whether foreign keys of the protected table p lead from a row that is deleted to other rows of p, over other tables
maybe: these are deleted or changed under the same token. A partition counts as the table that it is of.
"""
REACHED: Final = f"""
(WITH RECURSIVE reached(oid) AS (
   SELECT c.oid
   UNION SELECT {_ROOT_OF_REFERRING} FROM reached r JOIN pg_constraint k ON {_ROOT_OF_REFERRED} = r.oid
    WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
 SELECT array_agg(p.relation::oid::int8 ORDER BY p.relation::oid) FROM reached r
   JOIN fencepost.protected p ON p.relation = r.oid AND r.oid <> c.oid)
"""
"""The protected tables, other than the table c, whose rows a foreign key's action may delete or change."""
REFERS: Final = f"""
(SELECT array_agg(DISTINCT {_ROOT_OF_REFERRED}::int8) FROM pg_constraint k
  WHERE k.contype = 'f' AND {_ROOT_OF_REFERRING} = c.oid)
"""
"""The tables that foreign keys of the table c lead to. A partition counts as the table that it is of."""
CHANGES: Final = f"""
(SELECT array_agg(DISTINCT a.attname::text) FROM pg_constraint k
   JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = ANY(k.confkey)
  WHERE {_REFERRED} AND k.contype = 'f' AND k.confupdtype IN ('c', 'n', 'd'))
"""


# What roles may do with tables, asked before a write of theirs is queued: it is made later, when nobody can be told.
#
# PostgreSQL says what a role may do with a table and each of its columns, once per role and table and for a while.
# What a write of one row needs stands in docs/roles.md. The write may be denied all the same when it is made: by a
# policy or a trigger, for a sequence or a function that a default uses, or as a PUT that makes its row, which takes
# INSERT.


def _columns(privilege: str) -> str:
    may = f"pg_catalog.has_column_privilege(r.oid, c.oid, a.attnum, '{privilege}')"
    return f"pg_catalog.array_agg(a.attname::pg_catalog.text) FILTER (WHERE {may})"


_PRIVILEGES: Final = f"""
SELECT pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AS schema,
       pg_catalog.has_table_privilege(r.oid, c.oid, 'DELETE') AS deletes, p.*
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) coalesce($1::pg_catalog.name, SESSION_USER)
 CROSS JOIN LATERAL (SELECT {_columns("SELECT")} AS selects, {_columns("INSERT")} AS inserts,
                            {_columns("UPDATE")} AS updates
                       FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0::int2
                        AND NOT a.attisdropped) AS p
 WHERE c.oid OPERATOR(pg_catalog.=) $2::pg_catalog.oid"""


@dataclass(frozen=True, slots=True)
class Privileges:
    """What a role may do with a table: whether it may use the table's schema, delete rows, and which columns it may
    read, give values in new rows, and change.
    """

    schema: bool
    deletes: bool
    selects: frozenset[str]
    inserts: frozenset[str]
    updates: frozenset[str]

    def denial(self, table: ProtectedTable, verb: str, sets: Collection[str], shown: Collection[str]) -> str | None:
        """Say in PostgreSQL's words that a write of one row is denied: it `sets` columns, and its answer has those that
        are `shown`. None: it is not.
        """
        if not self.schema:
            return f"permission denied for schema {table.schema}"
        scope = table.fence.scope
        mark = (MARK_COLUMN,) if scope is None else ()
        reads = {*table.key, *shown, *(mark if scope is None else scope.columns)}
        match verb:
            case "post":
                writes = self.inserts.issuperset((*sets, *mark))
            case "delete":  # of a scope the row is locked first, which takes UPDATE of some column
                writes = self.deletes and (scope is None or bool(self.updates))
            case _:
                writes = bool(self.updates) and self.updates.issuperset((*sets, *mark))
        return None if writes and reads <= self.selects else f"permission denied for table {table.relation}"


class KnownPrivileges:
    """What is known at this gateway."""

    def __init__(self, times: Times = TIMES) -> None:
        self._within = times.requests.submit_within
        self._known = Known[tuple[str | None, int], Privileges | None](times.connections.roles_known_for, times.clock)

    async def of(self, database: Database, role: str | None, table: ProtectedTable) -> Privileges | None:
        """Say what a role, or the gateway's login (None), may do with a table. Where PostgreSQL cannot be asked that is
        what it last said; None: nothing is known.
        """
        key = (role, table.oid)

        async def ask() -> Privileges | None:
            try:
                async with asyncio.timeout(self._within), database.connection() as connection:
                    row = await connection.fetchrow(_PRIVILEGES, role, table.oid)
            except (StorageError, TimeoutError):
                return self._known.last(key)
            if row is None:  # the role or the table has just gone
                return None
            columns = (frozenset(row[kind] or ()) for kind in ("selects", "inserts", "updates"))
            return Privileges(row["schema"], row["deletes"], *columns)

        return await self._known.get(key, ask)

    def forget(self) -> None:
        self._known.forget()
