"""${message}: what changes for those who use the schema, and why.

Make the same change in migrations/schema, where each table and function stands once, as it is now: a new database is made
from there. A test compares both ways (tests/migration/test_migrations.py). Decide on fencepost.compatible_from()
(migrations/schema/versions.sql).
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().opts.get("new"):
        return  # made from migrations/schema just now


def downgrade() -> None:
    pass
