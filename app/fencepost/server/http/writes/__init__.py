"""Writes to tables, from a request to its answer."""
