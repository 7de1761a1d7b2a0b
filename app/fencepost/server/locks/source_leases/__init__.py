"""Leases over the locks of a lock service: PostgreSQL keeps the lease and judges the tokens."""
