"""Name the lines of app/ that tests ran before, and run no more: see "Take a test away" in CONTRIBUTING.md.

    python -m tools.lost_lines BEFORE AFTER

Each is a checkout in which `coverage json` has written coverage.json. Lines are compared by their text, within files of
one name: between the two a line may have moved. Exit code 1 when a line is lost.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

REPORT: Final = "coverage.json"


def main(before: Path, after: Path) -> int:
    """Print them. Returns the exit code."""
    ran = {_name(line) for line in _lines(before, "executed_lines")}
    found = [line for line in _lines(after, "missing_lines") if _name(line) in ran]
    for file, number, text in found:
        click.echo(f"{file}:{number}: {text}")
    return int(bool(found))


def _lines(checkout: Path, kind: str) -> Iterator[tuple[str, int, str]]:
    """Give file, number and text of each line of this kind."""
    report: dict[str, Any] = json.loads((checkout / REPORT).read_text("utf-8"))
    for file, measured in report["files"].items():
        texts = (checkout / file).read_text("utf-8").splitlines()
        for number in measured[kind]:
            yield file, number, texts[number - 1].strip()


def _name(line: tuple[str, int, str]) -> tuple[str, str]:
    """What a line is recognised by: its file's name without folders, and its text."""
    return Path(line[0]).name, line[2]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
