"""Fencepost: a fencing-token enforcing storage gateway in front of PostgreSQL."""

__version__ = "0.1.0"
