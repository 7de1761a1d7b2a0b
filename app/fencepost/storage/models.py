"""The tables of the schema fencepost, for Alembic: what the migrations must add up to (a test compares them).

The gateway's own statements are plain SQL; nothing queries through these.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import REGCLASS, TIMESTAMP
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
    Column("rule", Text, CheckConstraint("rule IN ('strict', 'lease')", "protected_rule_check"), nullable=False),
    Column("source", Text, nullable=False, server_default="external"),
    Column("key_columns", ARRAY(Text), nullable=False),
    Column("functions", Text, nullable=False),
    Column("protected_at", TIMESTAMP(timezone=True), nullable=False, server_default=_CLOCK),
    Column("protected_by", Text, nullable=False, server_default=text("session_user")),
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
    comment="Per protected table: marks of deleted rows up to here may have been pruned, so nothing may be "
    "inserted under such a token (R6). Outlives unprotect.",
)
