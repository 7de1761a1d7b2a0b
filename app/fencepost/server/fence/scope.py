"""Scopes: one fence for all rows that render to the same name (R8). `account/{account_id}` is a template.

A template is a prefix, a slash, and columns in braces joined by commas. A row's scope is the prefix with the columns'
values, in the grammar of resource names: `account/42`.
"""

import re
from dataclasses import dataclass
from typing import Final

LONGEST_PREFIX: Final = 63
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COLUMNS: Final = re.compile(r"\{[^{}]+\}(?:,\{[^{}]+\})*")


class MalformedScopeError(ValueError):
    """The template cannot be read; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A template, read. The prefix stands where a table's name stands in a row's resource name."""

    prefix: str
    columns: tuple[str, ...]

    @property
    def template(self) -> str:
        """The text that `parse_scope` reads."""
        return f"{self.prefix}/{','.join('{' + column + '}' for column in self.columns)}"


def parse_scope(template: str) -> Scope:
    """Read a template; raise MalformedScopeError."""
    prefix, slash, columns = template.partition("/")
    if not slash or not _COLUMNS.fullmatch(columns):
        raise MalformedScopeError(
            f"{template!r}: a scope is a name, a slash and columns in braces: account/{{account_id}}, or"
            " shelf/{region},{shelf}"
        )
    if not _PREFIX.fullmatch(prefix) or len(prefix) > LONGEST_PREFIX:
        raise MalformedScopeError(
            f"{template!r}: the name before the slash has 1 to {LONGEST_PREFIX} letters, digits, _ . or -"
        )
    names = tuple(columns[1:-1].split("},{"))
    if len(set(names)) < len(names):
        raise MalformedScopeError(f"{template!r}: a column is named twice")
    return Scope(prefix, names)
