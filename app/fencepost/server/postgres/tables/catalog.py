"""The database's tables as the gateway sees them: read from pg_catalog, never from a model.

A Catalog is one consistent, immutable picture. A request that finds it outdated asks for a newer one
(`tables/cache.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Self, TypeVar, TypeVarTuple, Unpack

from fencepost.server.fence.ceiling import Ceiling
from fencepost.server.fence.scope import Scope
from fencepost.server.fence.token import EXTERNAL, Rule

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

    deletes_own_rows: bool = False
    """Whether a DELETE of one row may reach other rows of the table, by foreign keys."""

    key: str = ""
    """What the names of resources are rendered from, as fencepost.key_of has it."""

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
    """Whether its writes run no code but ours, so that several operations may share a transaction unseen."""
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
    """Columns that an UPDATE changes in other tables too, by a foreign key's ON UPDATE."""
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
