"""`model/run`: the command, its searches, and the page that it writes."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from model.__main__ import main
from model.checks import HOLDING, LARGE, Check
from model.page import PAGE, beside_rules, counterexamples, figures, part_of, switches
from model.spin import ModelError, counterexample, missing, search
from model.switches import OUTSIDE, SWITCHES, Switch
from model.trails import KEPT, kept

# `model/run`: what it answers when it cannot do what it was asked.


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it believe that SPIN and a compiler are there."""
    monkeypatch.setattr("model.__main__.missing", list)


def test_without_spin_it_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.__main__.missing", lambda: ["spin", "gcc libc6-dev"])
    answer = CliRunner().invoke(main, [])
    assert answer.exit_code == 1
    assert "apt-get install spin gcc libc6-dev" in answer.output


@pytest.mark.usefixtures("installed")
def test_a_name_that_is_no_scene_and_no_switch_is_refused() -> None:
    answer = CliRunner().invoke(main, ["scope", "NO_R99"])
    assert answer.exit_code == 2
    assert "no scene and no switch is called NO_R99" in answer.output


@pytest.mark.usefixtures("installed")
def test_the_page_is_written_from_all_scenes_only() -> None:
    answer = CliRunner().invoke(main, ["--write", "scope"])
    assert answer.exit_code == 2
    assert "without --large and NAMES" in answer.output


@pytest.mark.usefixtures("installed")
def test_the_large_sizes_have_scenes_only() -> None:
    answer = CliRunner().invoke(main, ["--large", "many"])
    assert answer.exit_code == 2
    assert "no large size of many" in answer.output


# docs/model.md is what the model says, and the model's rules are those of docs/rules.md. This needs no SPIN.

ROOT = Path(__file__).parents[2]
TEXT = PAGE.read_text("utf-8")
SECTION = re.compile(r"^## R([0-9]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
RULES_PAGE = (ROOT / "docs/rules.md").read_text("utf-8")
RULES = dict(SECTION.findall(RULES_PAGE))
SOURCES = {path: path.read_text("utf-8") for path in (ROOT / "model").rglob("*.pml")}


def test_each_rule_can_be_switched_off_or_is_outside_for_a_reason() -> None:
    covered = {switch.rule for switch in SWITCHES}
    assert covered | OUTSIDE.keys() == {int(number) for number in RULES}
    assert covered & OUTSIDE.keys() == set()


def test_a_rule_has_a_link_to_its_counterexample_iff_it_can_be_switched_off() -> None:
    linked = {int(number) for number, text in RULES.items() if f"(model.md#r{number})" in text}
    assert linked == {switch.rule for switch in SWITCHES}


def test_the_switches_are_those_of_the_scenes() -> None:
    in_scenes = {name for text in SOURCES.values() for name in re.findall(r"\bNO_(R\d+(?:_[A-Z]+)?)\b", text)}
    assert in_scenes == {switch.name for switch in SWITCHES}


def test_rules_that_scenes_name_exist() -> None:
    named = {number for text in SOURCES.values() for number in re.findall(r"(?<![\w.])R(\d+)\b", text)}
    assert named <= RULES.keys()
    assert len(named) > 10


def test_the_made_parts_are_up_to_date() -> None:
    assert part_of(TEXT, "switches") == switches(), "model/run --write"
    assert part_of(TEXT, "counterexamples") == counterexamples(), "model/run --write"
    for part, made in beside_rules().items():
        assert part_of(RULES_PAGE, part) == made, "model/run --write"
        assert part in RULES[part.rpartition("R")[2]], f"{part} stands under its rule"


def test_the_figures_are_of_all_scenes() -> None:
    rows = part_of(TEXT, "figures").splitlines()[2:]
    named = ["`" + "` `-D".join((check.scene, *check.defines)) + "`" for check in HOLDING]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == named
    scenes = {path.stem for path in SOURCES if path.parent.name == "scenes"}
    assert scenes == {check.scene for check in HOLDING} >= {check.scene for check in LARGE}
    table = TEXT.partition("## What is in it")[2].partition("## What is checked")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) - {"scene"} == scenes


def test_each_switch_has_a_counterexample_and_there_is_no_other() -> None:
    assert {path.stem for path in KEPT.iterdir()} == {switch.name for switch in SWITCHES}
    for switch in SWITCHES:
        assert kept(switch).splitlines()[-1].startswith("spin: "), switch.name


def test_each_step_is_in_the_table_of_what_it_stands_for() -> None:
    table = TEXT.partition("## Which code a step stands for")[2].partition("\n## ")[0]
    steps = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    inlines = {name for text in SOURCES.values() for name in re.findall(r"^inline (\w+)", text, re.MULTILINE)}
    assert inlines <= steps, "docs/model.md: say which statement or function it stands for"
    assert steps - inlines <= {"Pruner", "Gateway", "Failover"}, "a step that is in no scene any more"


# SPIN searches every scene completely and finds nothing; without a part of a rule it finds the kept counterexample.


@pytest.mark.skipif(bool(missing()), reason="needs SPIN and a C compiler: apt-get install spin gcc libc6-dev")
@pytest.mark.long("searches of the model")
@pytest.mark.parametrize("check", HOLDING, ids=lambda check: check.title)
def test_a_scene_holds_and_its_figures_are_those_of_the_page(check: Check) -> None:
    found = search(check)
    assert found.errors == 0, "an assertion fails, or a process cannot go on"
    row = figures([(check, found)]).splitlines()[-1]
    assert row in part_of(PAGE.read_text("utf-8"), "figures").splitlines(), "model/run --write"


@pytest.mark.skipif(bool(missing()), reason="needs SPIN and a C compiler: apt-get install spin gcc libc6-dev")
@pytest.mark.long("searches of the model")
@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.title)
def test_without_a_part_of_a_rule_spin_finds_the_counterexample_that_is_kept(switch: Switch) -> None:
    assert counterexample(switch) == kept(switch), "model/run --write, and look at what has changed"


@pytest.mark.skipif(bool(missing()), reason="needs SPIN and a C compiler: apt-get install spin gcc libc6-dev")
@pytest.mark.long("searches of the model")
def test_a_switch_that_changes_nothing_is_an_error() -> None:
    idle = Switch("R1", "nothing", "nothing", Check("scope"))
    with pytest.raises(ModelError, match="NO_R1 changes nothing"):
        counterexample(idle)


@pytest.mark.skipif(bool(missing()), reason="needs SPIN and a C compiler: apt-get install spin gcc libc6-dev")
@pytest.mark.long("searches of the model")
def test_a_scene_with_an_error_is_named() -> None:
    with pytest.raises(ModelError, match="spin failed"):
        search(Check("no_such_scene"))
