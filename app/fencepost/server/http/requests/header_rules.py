"""Headers that would change what a request does, or what it is answered, if they were heeded. They are not: so they are
refused by name, before anything is done. Which are harmless, and why: docs/reading.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import UNSUPPORTED_MEDIA_TYPE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.http.problems.response import RequestError


@dataclass(frozen=True, slots=True)
class Rule:
    """Why a header is refused, and what to do. `on_reads`: on GET and HEAD as well."""

    reason: str
    hint: str
    on_reads: bool = True
    harmless: frozenset[bytes] = frozenset()
    """Values, in lower case, that ask for what is done anyway."""
    refuse: Callable[[str, str], Problem] = bad_request


def _unsupported(detail: str, hint: str) -> Problem:
    return Problem(UNSUPPORTED_MEDIA_TYPE, detail, hint=hint)


_CONDITION: Final = Rule(
    "preconditions are not judged here, and a write that ignored one could overwrite what it was to protect.",
    "X-Fence-Token is the condition of a write; a filter in the query can be another: ?version=eq.7.",
)
_OVERRIDE: Final = Rule("the method is the one of the request line.", "Send the request with the method that is meant.")

REFUSED: Final[dict[bytes, Rule]] = {
    b"range": Rule("rows are not chosen by it, on any method.", "?limit=20&offset=40 on a GET."),
    b"content-range": Rule(
        "a part of a row is not replaced by its place.", "PATCH changes single columns.", on_reads=False
    ),
    b"if-match": _CONDITION,
    b"if-unmodified-since": _CONDITION,
    b"if-none-match": Rule(
        _CONDITION.reason, "POST creates a row, and is 409 where there is one already.", on_reads=False
    ),
    b"content-encoding": Rule(
        "bodies are read as they come.", "Send the body as plain JSON.", False, frozenset({b"identity"}), _unsupported
    ),
    b"expect": Rule(
        "100-continue is all that can be expected.", "Leave the header out.", True, frozenset({b"100-continue"})
    ),
    b"x-http-method-override": _OVERRIDE,
    b"x-http-method": _OVERRIDE,
    b"x-method-override": _OVERRIDE,
}

JUDGED: Final = frozenset(REFUSED)
"""The names to look for: a request with none of them has nothing to be judged."""


def refuse_headers(headers: Mapping[bytes, bytes], *, writing: bool) -> None:
    """Refuse the first header, in the order above, that asks for what is not done."""
    for name, rule in REFUSED.items():
        value = headers.get(name)
        if value is None or not (writing or rule.on_reads) or value.strip().lower() in rule.harmless:
            continue
        spelled = name.decode("ascii").title()
        shown = value[:60].decode("latin-1")
        raise RequestError(rule.refuse(f"{spelled}: {shown}: {rule.reason}", rule.hint))
