"""The tables of the schema fencepost, for Alembic: what the migrations must add up to (a test compares them).

The gateway's own statements are plain SQL; nothing queries through these.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import INET, JSONB, OID, REGCLASS, TIMESTAMP, UUID
from sqlalchemy.types import UserDefinedType

SCHEMA = "fencepost"
metadata = MetaData(schema=SCHEMA)


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction number."""

    cache_ok = True

    def get_col_spec(self, **_kw: object) -> str:
        """Name the type in DDL."""
        return "xid8"


_CLOCK = text("clock_timestamp()")

protected = Table(
    "protected",
    metadata,
    Column("relation", REGCLASS, primary_key=True),
    Column("name", Text(collation="C"), nullable=False),
    Column("rule", Text, CheckConstraint("rule IN ('strict', 'epoch')", "protected_rule_check"), nullable=False),
    Column("source", Text, nullable=False, server_default="external"),
    Column("key_columns", ARRAY(Text), nullable=False),
    Column("functions", Text, nullable=False),
    Column("protected_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    Column("protected_by", Text, nullable=False, server_default=text("session_user")),
    Column("scope", Text),
    Column("requires_key", Boolean, nullable=False, server_default=text("false")),
    Column(
        "max_token",
        BigInteger,
        CheckConstraint("max_token > 0", "protected_max_token_check"),
        comment="The highest token that a table of the source external takes. Null for other sources: they know what "
        "they have issued.",
    ),
    Column(
        "max_jump",
        BigInteger,
        CheckConstraint("max_jump > 0", "protected_max_jump_check"),
        comment="How far a token may be above the mark that it raises, in a table of the source external. Null: any "
        "distance.",
    ),
    Column(
        "verify",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether the gateway asks the source about tokens that it does not know, before a mark is raised "
        "under them.",
    ),
    Column(
        "partitions",
        ARRAY(REGCLASS),
        nullable=False,
        server_default="{}",
        comment="The partitions, at any depth, whose rows have the marks of their keys. One that is attached and not "
        "here has to be looked at by `fencepost protect`.",
    ),
    UniqueConstraint("name", name="protected_name_key"),
    comment="The tables under `fencepost protect`. name is the prefix of their resources and never changes with "
    "the table's; functions is the common start of their trigger functions' names.",
)

marks = Table(
    "marks",
    metadata,
    Column("resource", Text(collation="C"), primary_key=True),
    Column(
        "last_fence_token",
        BigInteger,
        CheckConstraint("last_fence_token > 0", "marks_token_check"),
        nullable=False,
    ),
    Column("xid", Xid8, nullable=False),
    Column("row_absent", Boolean, nullable=False),
    Column("changed_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    comment="Marks that outlive their rows (R6). xid is the transaction that raised the mark: one operation is "
    "one transaction's work. row_absent tells a deleted or never created row from one that lives.",
)

floors = Table(
    "floors",
    metadata,
    Column("name", Text(collation="C"), primary_key=True),
    Column(
        "floor",
        BigInteger,
        CheckConstraint("floor >= 0", "floors_floor_check"),
        nullable=False,
        server_default="0",
    ),
    Column(
        "key",
        JSONB,
        comment="From which primary key the names of the marks were rendered: see fencepost.key_of.",
    ),
    Column(
        "covers_rows",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether the floor holds for rows that are there, too: the table has left a scope, whose marks its "
        "rows do not have. Its next protection by rows writes it into them.",
    ),
    Column(
        "relation",
        OID,
        comment="The table that was unprotected under this name: it may be renamed before it is protected again.",
    ),
    comment="Per protected table: marks of deleted rows up to here may have been pruned, so nothing may be "
    "inserted under such a token (R6). Outlives unprotect.",
)

locks = Table(
    "locks",
    metadata,
    Column(
        "name",
        Text(collation="C"),
        CheckConstraint("octet_length(name) BETWEEN 1 AND 512", "locks_name_check"),
        primary_key=True,
    ),
    Column("lease_id", BigInteger),
    comment="One row per lock that somebody holds, or has tried to get. Those of idle locks are swept.",
)

leases = Table(
    "leases",
    metadata,
    Column("lease_id", BigInteger, primary_key=True, autoincrement=False),
    Column("secret_hash", LargeBinary),
    Column("names", ARRAY(Text(collation="C")), nullable=False),
    Column("owner", Text, nullable=False),
    Column("claims", ARRAY(Text(collation="C")), nullable=False),
    Column("ttl_ms", Integer, CheckConstraint("ttl_ms > 0", "leases_ttl_check"), nullable=False),
    Column("last_token", BigInteger, nullable=False),
    Column("granted_at", TIMESTAMP(timezone=True), nullable=False),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
    Column("ended_at", TIMESTAMP(timezone=True)),
    UniqueConstraint("secret_hash", name="leases_secret_hash_key"),
    comment="Grants. lease_id is the first token drawn for it, so no live lease has an older one. ended_at: released, "
    "or superseded after it expired. Ended leases stay for a while, to tell a refused holder who came after it.",
)

draws = Table(
    "draws",
    metadata,
    Column("first_token", BigInteger, primary_key=True, autoincrement=False),
    Column("tokens", ARRAY(BigInteger), nullable=False),
    Column("lease_id", BigInteger, nullable=False),
    Column("drawn_at", TIMESTAMP(timezone=True), nullable=False),
    comment="Which tokens were drawn together, for which lease. Written with every draw: a transaction that only calls "
    "nextval is not flushed at commit, and its tokens could come again after a crash.",
)

gateways = Table(
    "gateways",
    metadata,
    Column("gateway", UUID, primary_key=True),
    Column("seen_at", TIMESTAMP(timezone=True), nullable=False),
    comment="Gateway processes that have waiters, and when they were last heard of. The waiters of a silent one do not "
    "block a queue.",
)

generations = Table(
    "generations",
    metadata,
    Column(
        "generation",
        BigInteger,
        CheckConstraint("generation BETWEEN 0 AND 32767", "generations_generation_check"),
        primary_key=True,
        autoincrement=False,
    ),
    Column(
        "identity",
        UUID,
        nullable=False,
        server_default=text("gen_random_uuid()"),
        comment="Random: two histories of one database may both raise a generation, even of one number, and the tokens "
        "of one are worth nothing in the other.",
    ),
    Column("system_identifier", BigInteger, nullable=False),
    Column("timeline", Integer, nullable=False),
    Column("database_oid", OID, nullable=False),
    Column(
        "relation_oid",
        OID,
        nullable=False,
        comment="The oid of this very table when the row was made: a restored dump brings the row, and makes the table "
        "anew.",
    ),
    Column(
        "above",
        BigInteger,
        CheckConstraint("above >= 0 AND above >> 48 < generation", "generations_above_check"),
        comment="generation raise --above: the generations up to that of this token are over, in every history of this "
        "database.",
    ),
    Column("raised_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    Column("raised_by", Text, nullable=False, server_default=text("session_user")),
    Column("reason", Text, CheckConstraint(r"reason ~ '\S'", "generations_reason_check"), nullable=False),
    comment="On which system, timeline and database fenced writes were allowed, and since when (R19). The newest "
    "counts: gateways refuse to write anywhere else until an operator raises the generation.",
)

waiters = Table(
    "waiters",
    metadata,
    Column("ticket", BigInteger, nullable=False),
    Column("name", Text(collation="C"), nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("gateway", UUID),
    Column("visit", UUID, nullable=False),
    Column("queued_at", TIMESTAMP(timezone=True), nullable=False),
    Column("give_up_at", TIMESTAMP(timezone=True), nullable=False),
    Column("kept_ms", Integer),
    PrimaryKeyConstraint("name", "ticket", name="waiters_pkey"),
    Index("waiters_visit_idx", "visit"),
    Index("waiters_secret_hash_idx", "secret_hash"),
    comment="Who waits for a lock, one row per lock of the request. visit is the HTTP request that waits; gateway is "
    "null between two requests of one waiter that keeps its place, and kept_ms says for how long.",
)

break_glass_log = Table(
    "break_glass_log",
    metadata,
    Column("xid", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("name", Text(collation="C"), nullable=False),
    Column("verb", Text, nullable=False),
    Column("resource", Text(collation="C"), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", TIMESTAMP(timezone=True), nullable=False, server_default=text("now()")),
    Column("login", Text, nullable=False, server_default=text("session_user")),
    Column(
        "role",
        Text,
        nullable=False,
        server_default=text("coalesce(nullif(current_setting('role'), 'none'), session_user)"),
    ),
    Column("application", Text, nullable=False, server_default=text("current_setting('application_name')")),
    Column("client", INET, server_default=text("inet_client_addr()")),
    Column("query", Text),
    Column("digest", LargeBinary, nullable=False),
    Column("old_mark", BigInteger),
    Column("new_mark", BigInteger),
    PrimaryKeyConstraint("xid", "at", "name", "verb", "digest", name="break_glass_log_pkey"),
    comment="Writes without a token by operators (R14): one record per transaction, table, verb, reason and statement "
    "(digest is of these two); resource is the first that was written, at is when the transaction began. In the "
    "transaction of the write: a write that is undone leaves none. The verb RESET: an operator lowered the mark of a "
    "resource, or a floor, from old_mark to new_mark.",
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", Text(collation="C"), nullable=False),
    Column("key", Text(collation="C"), nullable=False),
    Column("payload_hash", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("headers", ARRAY(Text), nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("created_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    PrimaryKeyConstraint("caller", "key", name="idempotency_pkey"),
    Index("idempotency_created_at_idx", "created_at"),
    comment="What was answered to writes with an Idempotency-Key, in the transaction of the write (R16): a record is "
    "there if, and only if, its write landed. Refusals are not stored. caller is empty as long as callers are not told "
    "apart.",
)

sources = Table(
    "sources",
    metadata,
    Column("name", Text(collation="C"), primary_key=True),
    Column("scheme", Text, nullable=False),
    Column("ordering", Text, nullable=False),
    Column("verifies", Boolean),
    Column("frozen_at", TIMESTAMP(timezone=True)),
    Column("frozen_because", Text),
    CheckConstraint(
        "name ~ '^[a-z][a-z0-9_]{0,31}$' AND name NOT IN ('builtin', 'external')",
        "sources_name_check",
    ),
    CheckConstraint("ordering IN ('source', 'lock', 'database')", "sources_ordering_check"),
    comment="Lock services whose tokens tables may be pinned to; how far these got is in a sequence for each, "
    "tokens_NAME. ordering: how far its numbers can be compared. scheme: what kind of service it is.",
)

source_leases = Table(
    "source_leases",
    metadata,
    Column("lease_id", BigInteger, Identity(always=True), primary_key=True),
    Column("source", Text(collation="C"), ForeignKey("fencepost.sources.name"), nullable=False),
    Column("lock", Text(collation="C"), nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("claims", ARRAY(Text(collation="C")), nullable=False),
    Column("claimed", Boolean, nullable=False),
    Column("handle", Text, nullable=False),
    Column("tokens", ARRAY(BigInteger), nullable=False),
    Column("last_token", BigInteger, nullable=False),
    Column("ttl_ms", Integer, CheckConstraint("ttl_ms > 0", "source_leases_ttl_check"), nullable=False),
    Column("granted_at", TIMESTAMP(timezone=True), nullable=False),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
    Column("ended_at", TIMESTAMP(timezone=True)),
    Column("released", Boolean, nullable=False, server_default=text("false")),
    Index("source_leases_secret_hash_key", "secret_hash", unique=True, postgresql_where=text("ended_at IS NULL")),
    Index("source_leases_live_idx", "source", "lock", postgresql_where=text("ended_at IS NULL")),
    Index("source_leases_lock_idx", "source", "lock", "last_token"),
    comment="Grants of lock services. handle: what the service needs to renew or release. claimed: the claims that go "
    "with the grant have been made. tokens: those drawn with the grant.",
)

source_draws = Table(
    "source_draws",
    metadata,
    Column("source", Text(collation="C"), nullable=False),
    Column("first_token", BigInteger, nullable=False),
    Column("tokens", ARRAY(BigInteger), nullable=False),
    Column("lease_id", BigInteger, nullable=False),
    Column("drawn_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    Index("source_draws_idx", "source", "first_token"),
    Index("source_draws_lease_id_idx", "lease_id"),
)

source_log = Table(
    "source_log",
    metadata,
    Column("at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    Column("source", Text(collation="C"), nullable=False),
    Column("event", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
    Column("by", Text, nullable=False, server_default=text("session_user")),
    CheckConstraint("event IN ('registered', 'frozen', 'raised')", "source_log_event_check"),
    comment="What befell the sources, in order: rows are only ever added.",
)
