"""The parts of docs/model.md that are made: the figures of the searches, the list of switches, the counterexamples; and
in docs/rules.md, under each rule, what is drawn first for it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from model.checks import Check
from model.spin import Search
from model.switches import OUTSIDE, SWITCHES
from model.trails import drawn, kept

PAGE: Final = Path(__file__).parents[1] / "docs" / "model.md"
RULES: Final = PAGE.with_name("rules.md")


def figures(searches: Sequence[tuple[Check, Search]]) -> str:
    """Make the table of what was searched. It has nothing that differs between two runs."""
    rows = [
        f"| {_named(check)} | {found.states:,} | {found.transitions:,} | {found.depth:,} |" for check, found in searches
    ]
    return "\n".join(["| scene | states | transitions | depth |", "| --- | ---: | ---: | ---: |", *rows])


def measured(searches: Sequence[tuple[Check, Search]]) -> str:
    """Make the table of a run by hand, with time and memory."""
    rows = [
        f"| {_named(check)} | {found.states:,} | {found.transitions:,} | {found.depth:,} | {found.megabytes:,.0f} MB"
        f" | {found.seconds:,.0f} s |"
        for check, found in searches
    ]
    return "\n".join(
        [
            "| scene | states | transitions | depth | memory | time |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *rows,
        ]
    )


def switches() -> str:
    """Make the list of what can be taken out, and of the rules that are not in the model."""
    rows = [f"| [R{s.rule}](rules.md#r{s.rule}) | `-D{s.title}` | {s.check.scene} | {s.without} |" for s in SWITCHES]
    rows += [f"| [R{rule}](rules.md#r{rule}) | not in the model | | {why} |" for rule, why in OUTSIDE.items()]
    rows.sort(key=lambda row: int(re.findall(r"R(\d+)", row)[0]))
    return "\n".join(["| rule | switch | scene | without it |", "| --- | --- | --- | --- |", *rows])


def counterexamples() -> str:
    """Draw the counterexamples that are kept, by rule."""
    parts = []
    before = 0
    for switch in SWITCHES:
        if switch.rule != before:
            parts.append(f"### R{switch.rule}")
            before = switch.rule
        title = f"`-D{switch.title}`: {switch.without}."
        parts.append(f"{title}\n\n```\n{drawn(switch, kept(switch))}\n```")
    return "\n\n".join(parts)


def beside_rules() -> dict[str, str]:
    """Draw for docs/rules.md the first counterexample of each rule: part of that page -> its text."""
    first = {switch.rule: switch for switch in reversed(SWITCHES)}
    return {
        f"counterexample of R{rule}": "<details>\n<summary>Drawn, as short as SPIN finds it</summary>\n\n"
        f"Without the rule: {switch.without}.\n\n```\n{drawn(switch, kept(switch))}\n```\n\n</details>"
        for rule, switch in first.items()
    }


def replaced(text: str, part: str, made: str) -> str:
    """Put a made part into the page's text, between its two comments."""
    pattern = rf"(<!-- {part}: [^>]*-->\n).*?(\n<!-- end of {part} -->)"
    done, times = re.subn(pattern, lambda found: f"{found[1]}\n{made}\n{found[2]}", text, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"the page has no place for {part!r}, or several")
    return done


def part_of(text: str, part: str) -> str:
    """Read a made part."""
    found = re.search(rf"<!-- {part}: [^>]*-->\n\n(.*?)\n\n<!-- end of {part} -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no part {part!r}")
    return found[1]


def _named(check: Check) -> str:
    return f"`{check.scene}`" + "".join(f" `-D{define}`" for define in check.defines)
