"""HTML and SVG as text that is safe by construction: whatever is no `Markup` is escaped."""

from collections.abc import Iterable
from html import escape

LONGEST = 120
"""How many characters of a text of the history are shown."""


class Markup(str):
    """Text of HTML or SVG whose parts are escaped."""

    __slots__ = ()


def visible(text: object, longest: int = LONGEST) -> str:
    r"""Show a text of the history in one line: what prints nothing, or turns the line's direction, as `\u202e`."""
    cut = str(text)[: longest + 1]
    shown = _written_out(cut)
    return shown if len(cut) <= longest and len(shown) <= 2 * longest else f"{shown[: longest - 1]}…"


def _written_out(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Write an element. `class_` is the attribute class, `data_x` is data-x; an attribute that is None is left out.

    Children are escaped unless they are `Markup`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def void(name: str, **attributes: str | float | None) -> Markup:
    """Write an element of HTML that has no end tag, as `meta`."""
    return Markup(element(name, **attributes).removesuffix(f"</{name}>"))


def join(parts: Iterable[str]) -> Markup:
    """Put parts one after the other; those that are no `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(_written_out(part)) for part in parts))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(_written_out(value))
    return f"{value:.1f}".removesuffix(".0")
