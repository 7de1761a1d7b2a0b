"""`model/run`: what it answers when it cannot do what it was asked."""

import pytest
from click.testing import CliRunner
from model.__main__ import main


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
