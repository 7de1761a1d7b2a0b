"""The words of PostgREST's query language: names, JSON paths and values, read off a text from left to right.

What may stand where follows PostgREST's own parser (src/PostgREST/ApiRequest/QueryParams.hs). One difference:
it ignores what follows a complete term (`id=in.(1)2`); here that is an error.

Blanks are spaces and tabs. In a value each counts, also beside the comma or bracket that ends it; around names, commas
and brackets they do not count.
"""

import re

from fencepost.server.postgres.query import Field, JsonStep, QueryError

_SHOWN = 120
_MAX_INDEX = 2**31 - 1
_MAX_STEPS = 32

_SPACES = re.compile(r"[ \t]*")
_NAME = re.compile(r"[\w $]+(?:-(?!>)[\w $]+)*")
_KEY = re.compile(r"[^(\-:.,>)]+(?:-(?!>)[^(\-:.,>)]+)*")
_INDEX = re.compile(r"-?[0-9]+(?=->|::|[.,]|\Z)")
_QUOTED = re.compile(r'"([^\\"]*(?:\\.[^\\"]*)*)"', re.DOTALL)
_QUOTED_VALUE = re.compile(_QUOTED.pattern + r"(?=[,)]|\Z)", re.DOTALL)
_BEGUN_QUOTE = re.compile(r"[ \t]*\"")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BARE_VALUE = re.compile(r"[^,)]*")
_ARRAY_VALUE = re.compile(r"\{[^{}]*\}")


class Cursor:
    """A place in one parameter's value. `where` is how a QueryError names the parameter."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where if len(where) <= _SHOWN else where[:_SHOWN] + "…"
        self.position = 0

    def error(self, what: str) -> QueryError:
        return QueryError(f"{self.where}: {what}")

    def unexpected(self, wanted: str) -> QueryError:
        """Make an error that names what stands here instead of `wanted`."""
        found = repr(self.text[self.position]) if self.position < len(self.text) else "the end"
        return self.error(f"expected {wanted} at character {self.position + 1}, found {found}")

    def sees(self, literal: str) -> bool:
        """Whether `literal` comes next."""
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        """Step over `literal` if it comes next."""
        if not self.sees(literal):
            return False
        self.position += len(literal)
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Step over what `pattern` matches here."""
        if match := pattern.match(self.text, self.position):
            self.position = match.end()
        return match

    def skip_spaces(self) -> None:
        """Step over spaces and tabs."""
        self.match(_SPACES)

    def accept_spaced(self, literal: str, *, before_value: bool = False) -> bool:
        """Step over `literal` with blanks around it; without it, stay. Before a value the blanks behind it remain."""
        start = self.position
        self.skip_spaces()
        if self.accept(literal):
            if not before_value:
                self.skip_spaces()
            return True
        self.position = start
        return False

    def expect_end(self, wanted: str) -> None:
        """Raise unless everything has been read."""
        if self.position < len(self.text):
            raise self.unexpected(wanted)

    def name(self) -> str:
        """Read a column's name: letters of any language, digits, `_ $`, spaces, single dashes; or quoted."""
        if self.sees('"'):
            name = self._quoted(_QUOTED)
            if not name:
                raise self.unexpected('a name, closed by "')
            return name
        start = self.position
        match = self.match(_NAME)
        name = match[0].strip() if match else ""
        if not name:
            self.position = start
            raise self.unexpected('a column\'s name (quote unusual ones: "a,b")')
        return name

    def field(self) -> Field:
        """Read a column and, if there is one, the path into it: `data->a->0->>b`."""
        self.skip_spaces()
        column = self.name()
        path: list[JsonStep] = []
        while self.accept("->"):
            if path and path[-1].as_text:
                raise self.error("->> gives text, so that nothing can be taken from it; use -> before the last step")
            if len(path) == _MAX_STEPS:
                raise self.error(f"a JSON path of more than {_MAX_STEPS} steps")
            as_text = self.accept(">")
            path.append(JsonStep(self._json_key(), as_text))
        self.skip_spaces()
        return Field(column, tuple(path))

    def _json_key(self) -> str | int:
        if index := self.match(_INDEX):
            if len(index[0]) > len(str(-_MAX_INDEX)) or abs(int(index[0])) > _MAX_INDEX:
                raise self.error(f"the JSON array index {index[0][:20]} is out of range")
            return int(index[0])
        if self.sees('"'):
            key = self._quoted(_QUOTED)
            if key is None:
                raise self.unexpected('a JSON key, closed by "')
            return key
        match = self.match(_KEY)
        if match is None or not match[0].strip():
            raise self.unexpected("a JSON key or array index")
        return match[0].strip()

    def element(self) -> str:
        """Read one value of a list; quoted, it may hold what would end it, and a backslash escapes."""
        quoted = self._quoted(_QUOTED_VALUE)
        return self._bare() if quoted is None else quoted

    def nested_value(self) -> str:
        """Read a value inside and(…), or(…): quoted, an array like `{1,2}`, or up to a comma or bracket."""
        quoted = self._quoted(_QUOTED_VALUE)
        if quoted is not None:
            return quoted
        array = self.match(_ARRAY_VALUE)
        return array[0] if array else self._bare()

    def rest(self) -> str:
        """Read everything that is left."""
        start, self.position = self.position, len(self.text)
        return self.text[start:]

    def _quoted(self, pattern: re.Pattern[str]) -> str | None:
        match = self.match(pattern)
        return _ESCAPED.sub(r"\1", match[1]) if match else None

    def _bare(self) -> str:
        if _BEGUN_QUOTE.match(self.text, self.position):
            raise self.error('a value begins with " and does not end with one before , or ): "a,b", "say \\"hi\\""')
        match = self.match(_BARE_VALUE)
        return match[0] if match else ""
