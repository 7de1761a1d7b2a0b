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
    page = f"docs/sources/{kind_of(f'{scheme}://x')}.md"
    assert (ROOT / page).is_file(), f"write {page}; or, if {scheme} is another one over TLS, add it to registry._SAME"
    assert kind in BENCHES, f"write tests/conformance/{kind}_bench.py, and add {kind} to BENCHES in conftest.py"
    extra = KINDS[scheme][1]
    assert extra is None or extra in EXTRAS, f"pyproject.toml has no extra {extra}"
    (of_all,) = EXTRAS["sources"]
    assert extra is None or extra in re.findall(r"\w+", of_all), f"add {extra} to the extra sources in pyproject.toml"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_is_read_somewhere(name: str) -> None:
    readers = [path for path in tracked() if path.parts[0] == "app" and path.suffix == ".py"]
    used = any(re.search(rf"\bsettings\.{name}\b", (ROOT / path).read_text("utf-8")) for path in readers)
    assert used, f"nothing in app/ reads settings.{name}"


@pytest.mark.parametrize("name", [*inspect.signature(plan_protect).parameters][2:])
def test_what_a_table_can_be_protected_with_is_an_option_and_an_argument(name: str) -> None:
    assert name in inspect.signature(alembic.protect).parameters, f"alembic.protect has no argument {name}"
    option = next((parameter for parameter in command.params if parameter.name == name), None)
    assert option is not None, f"cli/protect.py: the command has no option whose parameter is called {name}"
    assert f"`{name}`" in (ROOT / "docs" / "alembic.md").read_text("utf-8"), f"docs/alembic.md has no `{name}`"
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    shown = any(f"{spelled} " in pages or f"{spelled}`" in pages for spelled in option.opts)
    assert shown, f"no page in docs/ shows {option.opts[-1]}: docs/protect.md"
