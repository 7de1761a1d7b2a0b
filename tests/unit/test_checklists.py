"""Steps of CONTRIBUTING.md's checklists that nothing else would miss."""

import inspect
import re
import tomllib

import pytest
from tests.conformance.conftest import BENCHES
from tests.unit.test_docs_names import ROOT, tracked

from fencepost import alembic
from fencepost.cli.protect import protect as command
from fencepost.locks.registry import KINDS, kind_of
from fencepost.settings import Settings
from fencepost.storage.protecting.protect import plan_protect

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def test_the_example_of_a_stepped_race_is_the_file() -> None:
    shown = re.search(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert shown[1] == (ROOT / "tests/integration/test_stepping.py").read_text("utf-8")


@pytest.mark.parametrize("scheme", KINDS)
def test_a_source_has_its_page_its_bench_and_its_extra(scheme: str) -> None:
    kind = kind_of(f"{scheme}://x").removeprefix("postgres-")
    assert (ROOT / "docs" / "sources" / f"{kind_of(f'{scheme}://x')}.md").is_file()
    assert kind in BENCHES
    extra = KINDS[scheme][1]
    assert extra is None or extra in EXTRAS
    (of_all,) = EXTRAS["sources"]
    assert extra is None or extra in re.findall(r"\w+", of_all)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_is_read_somewhere(name: str) -> None:
    readers = [path for path in tracked() if path.parts[0] == "app" and path.suffix == ".py"]
    assert any(re.search(rf"\bsettings\.{name}\b", (ROOT / path).read_text("utf-8")) for path in readers)


@pytest.mark.parametrize("name", [*inspect.signature(plan_protect).parameters][2:])
def test_what_a_table_can_be_protected_with_is_an_option_and_an_argument(name: str) -> None:
    assert name in inspect.signature(alembic.protect).parameters
    option = next(parameter for parameter in command.params if parameter.name == name)
    assert f"`{name}`" in (ROOT / "docs" / "alembic.md").read_text("utf-8")
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert any(f"{spelled} " in pages or f"{spelled}`" in pages for spelled in option.opts)
