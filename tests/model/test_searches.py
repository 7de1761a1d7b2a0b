"""SPIN searches every scene completely and finds nothing; without a part of a rule it finds the kept counterexample."""

import pytest
from model.checks import HOLDING, Check
from model.page import PAGE, figures, part_of
from model.spin import ModelError, counterexample, missing, search
from model.switches import SWITCHES, Switch
from model.trails import kept

pytestmark = [
    pytest.mark.long("searches of the model"),
    pytest.mark.skipif(bool(missing()), reason="needs SPIN and a C compiler: apt-get install spin gcc libc6-dev"),
]


@pytest.mark.parametrize("check", HOLDING, ids=lambda check: check.title)
def test_a_scene_holds_and_its_figures_are_those_of_the_page(check: Check) -> None:
    found = search(check)
    assert found.errors == 0, "an assertion fails, or a process cannot go on"
    row = figures([(check, found)]).splitlines()[-1]
    assert row in part_of(PAGE.read_text("utf-8"), "figures").splitlines(), "model/run --write"


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.title)
def test_without_a_part_of_a_rule_spin_finds_the_counterexample_that_is_kept(switch: Switch) -> None:
    assert counterexample(switch) == kept(switch), "model/run --write, and look at what has changed"


def test_a_switch_that_changes_nothing_is_an_error() -> None:
    idle = Switch("R1", "nothing", "nothing", Check("scope"))
    with pytest.raises(ModelError, match="NO_R1 changes nothing"):
        counterexample(idle)


def test_a_scene_with_an_error_is_named() -> None:
    with pytest.raises(ModelError, match="spin failed"):
        search(Check("no_such_scene"))
