"""Requests that run as the roles of their callers."""
