"""Write docs/checks.md from the checks of `fencepost doctor`: what each says, how bad that is, and what to do.

`make format` runs it; tests/unit/test_docs.py fails while the page is another one.
"""

import re
from pathlib import Path
from typing import Final

from fencepost.cli.status import CHECKS
from fencepost.server.ops.doctor import Check

PAGE: Final = Path(__file__).parents[1] / "docs" / "checks.md"

_TOP: Final = """\
<!-- Made by tools/checks_page.py from the checks themselves: change them there, and `make format`. -->

# What `fencepost doctor` looks at

Each row is a check, in the order in which they run. `fencepost doctor` prints what is found, a line each; the same in
several tables is one line with all their names. With an error the exit code is 1. `fencepost doctor --json` prints one
object, `{"findings": […]}`, in which each finding, for one subject, has `check` (the name in the first column),
`level`, `subject`, `text`, and `what_to_do`, which is null where the text says it all.

Words in capitals stand for what is found.
"""


def render() -> str:
    """Make the page: a table for each part."""
    parts = (
        f"\n## {title}\n\n| check | level | what it says | what to do |\n| --- | --- | --- | --- |\n"
        + "".join(map(_row, checks))
        for title, checks in CHECKS.items()
    )
    return _TOP + "".join(parts)


def _row(check: Check) -> str:
    return f"| {check.name} | {check.level} | {_shown(check.says)} | {_shown(check.mend).lstrip(':;. ')} |\n"


def _shown(text: str) -> str:
    text = re.sub(r"\}(?=[\w{])", "} ", text)
    return re.sub(r"\{(\w+)[^}]*\}", lambda found: found[1].upper().replace("_", " "), text)


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
