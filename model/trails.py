"""The counterexamples that are kept, and how they are drawn: a column for each holder, time goes down."""

import textwrap
from pathlib import Path
from typing import Final

from model.switches import Switch

KEPT: Final = Path(__file__).parent / "trails"
"""A file for each switch, as SPIN's replay prints it: `A| what A does`, `-|` what no holder does."""
WIDTH: Final = 46
ROLES: Final = {
    "replace": {"A": "direct SQL", "B": "PATCH"},
    "many": {"A": "PATCH of all rows", "B": "PATCH of all rows", "C": "one row"},
    "batch": {"A": "the batch", "B": "another gateway"},
    "unknown": {"A": "the old backend", "B": "an older holder", "C": "the gateway", "D": "a newer holder"},
    "idempotent": {"A": "the request", "B": "its repetition", "C": "the next holder"},
}
"""What the processes of a scene are; elsewhere they are holders."""
_CYCLE: Final = "<<<<<START OF CYCLE"


def path_of(switch: Switch) -> Path:
    """Give the file that keeps a switch's counterexample."""
    return KEPT / f"{switch.name}.txt"


def kept(switch: Switch) -> str:
    """Read the counterexample that is kept; empty if none is."""
    path = path_of(switch)
    return path.read_text("utf-8") if path.exists() else ""


def drawn(switch: Switch, trail: str) -> str:
    """Draw a counterexample, and write below it what is wrong."""
    steps = [line for line in trail.splitlines() if not line.startswith("spin: ")]
    names = sorted({line[0] for line in steps if line[1:2] == "|"} - {"-"})
    if any(line.startswith("-|") for line in steps):
        names.append("-")
    roles = ROLES.get(switch.check.scene, {})
    heads = {name: f"{name}: {roles[name]}" if name in roles else name for name in names}
    rows = [_row(names, heads | {"-": ""}), ""]
    for line in steps:
        if line.startswith(_CYCLE):
            rows.append("-- from here on again and again:")
            continue
        name, words = line[0], line[2:].strip()
        folded = textwrap.wrap(words, WIDTH - 2, subsequent_indent="  ")
        rows += [_row(names, {name: part}) for part in folded]
    return "\n".join([*rows, "", f"WRONG: {switch.wrong}"])


def _row(names: list[str], cells: dict[str, str]) -> str:
    return "".join(cells.get(name, "").ljust(WIDTH) for name in names).rstrip()
