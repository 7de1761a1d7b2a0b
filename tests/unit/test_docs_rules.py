"""docs/rules.md has every rule that the project names; the code and the tests that it names exist."""

import re
from functools import cache
from pathlib import Path

from tests.races.mutants import MUTANTS
from tests.unit.test_docs_names import ROOT, tracked

PAGE = Path("docs/rules.md")
TEXT = (ROOT / PAGE).read_text("utf-8")
NUMBER = re.compile(r"(?<![\w.])R([1-9][0-9]?)\b(?!['\"])")
SECTION = re.compile(r"^## R([0-9]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SECTIONS = {int(number): text for number, text in SECTION.findall(TEXT)}
PLANNED = {number for number, text in SECTIONS.items() if ": not built yet.**" in text}
BUILT = sorted(SECTIONS.keys() - PLANNED)


@cache
def named_in(*roots: str) -> dict[int, set[str]]:
    """The rules that files under these folders name, and where."""
    found: dict[int, set[str]] = {}
    for path in tracked():
        inside = not roots or path.parts[0] in roots
        if inside and path != PAGE and path.suffix in (".py", ".sql", ".md", ".toml", ".yml"):
            for number in NUMBER.findall((ROOT / path).read_text("utf-8")):
                found.setdefault(int(number), set()).add(str(path))
    return found


def test_the_numbers_have_no_gap_and_none_comes_twice() -> None:
    assert [int(number) for number, _ in SECTION.findall(TEXT)] == list(range(1, len(SECTIONS) + 1))
    linked = {int(number) for number in re.findall(r"\[R\d+\]\(#r(\d+)\)", TEXT)}
    assert linked >= SECTIONS.keys(), "a new rule gets a cell in the table at the top"


def test_each_rule_that_is_named_is_on_the_page() -> None:
    strangers = {number: where for number, where in named_in().items() if number not in SECTIONS}
    assert strangers == {}, "write a section for it in docs/rules.md, or correct the number"


def test_each_rule_on_the_page_is_named_in_the_code() -> None:
    named = set(named_in("app", "migrations")) & SECTIONS.keys()
    assert named == set(BUILT), "name each rule where it stands in app/ or migrations/, as (R12); no planned one"


def test_a_rule_has_an_interleaving_a_place_and_tests_and_its_mutants_exist() -> None:
    known = {each.name for each in MUTANTS}
    for number in BUILT:
        text = SECTIONS[number]
        assert re.match(r"\n\*\*[A-Z][^*]+\*\* ", text), f"R{number} begins with its name"
        assert re.search(r"^```\n[AB]", text, re.MULTILINE), (
            f"R{number}: an interleaving in ``` that begins with A or B"
        )
        assert "\n**Where**: " in text, f"R{number}: **Where**: and the modules"
        assert re.search(r"^\*\*Shown by\*\*\n- `tests/", text, re.MULTILINE), f"R{number}: **Shown by** and tests"
        shown = text.partition("**Shown by**")[2]
        listed = re.findall(r"`tests/races/mutants\.py`: (.*?)(?=\n- |\n\n|\Z)", shown, re.DOTALL)
        for mutant in re.findall(r'"([^"]+)"', " ".join(listed)):
            assert " ".join(mutant.split()) in known, f"there is no mutant {mutant!r}"


def test_a_word_is_explained_once() -> None:
    words = re.findall(r"^\| (?!word|---)([^|]+) \|", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(words) > 50
    assert sorted(set(words)) == sorted(words)
