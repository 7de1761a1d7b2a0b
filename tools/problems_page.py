"""Write docs/problems.md from fence/problem_types.py: every error with its code, its status, and what to do.

`make format` runs it; tests/unit/test_docs.py fails while the page is another one.
"""

from pathlib import Path
from textwrap import TextWrapper
from typing import Final

from fencepost.server.fence.problem_types import PROBLEM_TYPES, ProblemType

PAGE: Final = Path(__file__).parents[1] / "docs" / "problems.md"

_fill: Final = TextWrapper(120, break_on_hyphens=False).fill
_TOP: Final = """\
<!-- Made by tools/problems_page.py from fence/problem_types.py: change it there, and `make format`. -->

# Problems

Every error is one `application/problem+json` body. Decide by its `code`, which never changes its meaning. `detail` has
what happened in this case, and `hint` what to do. Send the same request again only where `retryable` is true, after the
seconds in `Retry-After`. A gateway shows these texts under `/problems`, each with an example.

A write's verdicts, side by side: [writes.md](writes.md#verdicts). The exceptions in Python: [client.md](client.md).
SQLSTATEs of direct SQL: [direct-sql.md](direct-sql.md).

| code | status | problem | may the same request succeed later? |
| --- | --- | --- | --- |
"""
_OF_POSTGRESQL: Final = "SQLSTATE"
"""Stands for the code where it is PostgreSQL's own."""


def render() -> str:
    """Make the page: an index, and a section for each type; those with PostgreSQL's codes come last."""
    kinds = sorted(PROBLEM_TYPES, key=lambda kind: kind.code or _OF_POSTGRESQL)
    return _TOP + "".join(map(_row, kinds)) + "".join(map(_section, kinds))


def _row(kind: ProblemType) -> str:
    retry = "yes" if kind.retryable else "no"
    return f"| {kind.code or _OF_POSTGRESQL} | {kind.status} | [{kind.slug}](#{kind.slug}) | {retry} |\n"


def _section(kind: ProblemType) -> str:
    code = f"code {kind.code}" if kind.code else "its code is the SQLSTATE"
    on_call = _fill(f"**On call.** {kind.on_call}").replace("docs/runbook.md", "[runbook.md](runbook.md)")
    return (
        f"\n## {kind.slug}\n\n{kind.title}. Status {kind.status}, {code}.\n\n"
        f"{_fill(kind.meaning)}\n\n{_fill(f'**What to do.** {kind.action}')}\n"
        + (f"\n{on_call}\n" if kind.on_call else "")
    )


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
