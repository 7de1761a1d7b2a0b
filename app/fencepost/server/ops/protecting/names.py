"""Whose the marks and the floor under a name are, as SQL: tables are renamed, replaced and swapped while nothing
protects them. The functions are in migrations/schema/names.sql, where the rules are.
"""

from fencepost.server.postgres.row_sql import literal


def relation(table: str) -> str:
    """Give the oid of a table, which is named as SQL."""
    return f"{literal(table)}::regclass::oid"


def move_marks(table: str, old: str, new: str) -> str:
    """Move the marks and the floor of a table that was renamed to its new name."""
    return f"SELECT fencepost.move_marks({relation(table)}, {literal(old)}, {literal(new)})"


def take_name(table: str, name: str) -> str:
    """Pass on what another table has left under a name, which is this one's from now on."""
    return f"SELECT fencepost.take_name({relation(table)}, {literal(name)})"


def remember(table: str, name: str) -> str:
    """Remember whose floor and marks these are: the table may be renamed before it is protected again. Its rows have
    marks of their own.
    """
    return f"UPDATE fencepost.floors SET relation = {relation(table)}, covers_rows = false WHERE name = {literal(name)}"
