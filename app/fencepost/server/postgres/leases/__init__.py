"""Locks, leases and token sources as PostgreSQL keeps them: one statement a verb."""
