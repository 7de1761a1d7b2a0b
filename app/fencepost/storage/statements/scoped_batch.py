"""To be replaced: what the gateway still calls by these names."""

from fencepost.fencing.scope import Scope
from fencepost.storage.statements import keyed
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.keyed import WriteStatement as Statement
from fencepost.storage.tables.catalog import ProtectedTable


def update(table: ProtectedTable, _scope: Scope, change: Change) -> Statement:
    """Write the statement."""
    return keyed.update(table, change, "skip")


def delete(table: ProtectedTable, _scope: Scope, target: str) -> Statement:
    """Write the statement."""
    return keyed.delete(table, target, "skip")


def insert(table: ProtectedTable, _name: str, columns: tuple[str, ...], target: str) -> Statement:
    """Write the statement."""
    return keyed.insert(table, columns, target, "skip")


def create(table: ProtectedTable, change: Change) -> Statement:
    """Write the statement."""
    return keyed.create(table, change, "skip")
