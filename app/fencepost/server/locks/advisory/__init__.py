"""The source `postgres-advisory`: PostgreSQL's advisory locks."""
