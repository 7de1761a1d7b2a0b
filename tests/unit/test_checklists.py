"""Steps of CONTRIBUTING.md's checklists that nothing else would miss."""

import ast
import inspect
import pkgutil
import re
import tomllib
from typing import Unpack

import pytest
from click.testing import CliRunner
from tests.conformance.conftest import BENCHES
from tests.sources.test_shutdown import LIVE_BY_SESSION
from tests.unit.test_docs_names import ROOT, tracked
from tests.unit.test_docs_sources import URLS

import fencepost
from fencepost import alembic, server
from fencepost.cli.main import COMMANDS, main
from fencepost.cli.protect import protect as command
from fencepost.server.locks.source import KINDS, SourceContext, kind_of, make
from fencepost.server.ops import checks, ddl
from fencepost.server.ops.protect import ProtectOptions, plan_protect
from fencepost.server.postgres.catalog_cache import PROTECTED
from fencepost.server.settings import Settings

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]


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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_there_and_a_page_names_it(name: str) -> None:
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown
    assert shown.output.startswith(f"Usage: main {name}")
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert f"fencepost {name}" in pages


def test_sources_whose_holds_live_by_a_session_are_stopped_in_a_test() -> None:
    context = SourceContext("it", "postgresql://x@127.0.0.1/x")
    by_session = {
        kind_of(URLS[scheme]).removeprefix("postgres-")
        for scheme in KINDS
        if not make(URLS[scheme], context).capabilities.ttl_from_server
    }
    assert by_session == set(LIVE_BY_SESSION), "tests/sources/test_shutdown.py: LIVE_BY_SESSION"


def test_what_is_kept_of_a_table_is_made_by_a_modules_function() -> None:
    """`Table.kept` keeps it under the function and its arguments. A closure could use what is not in the key."""
    made_by = set()
    ours = [path for path in tracked() if path.parts[:2] == ("app", "fencepost") and path.suffix == ".py"]
    for path in ours:
        if ".kept(" not in (text := (ROOT / path).read_text("utf-8")):
            continue
        tree = ast.parse(text)
        known = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
        known |= {alias.name for each in tree.body if isinstance(each, ast.ImportFrom) for alias in each.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "kept":
                made_by |= {(str(path), ast.unparse(node.args[0]))} if node.args else set()
                assert not node.args or ast.unparse(node.args[0]).partition(".")[0] in known, (path, node.lineno)
    assert ("app/fencepost/server/gateway/keyed.py", "_plan") in made_by


def test_a_setting_is_read_somewhere() -> None:
    readers = [path for path in tracked() if path.parts[0] == "app" and path.suffix == ".py"]
    read = {name for path in readers for name in re.findall(r"\bsettings\.(\w+)", (ROOT / path).read_text("utf-8"))}
    read |= {f"{name}_file" for name in read}  # which has what the other may have
    unread = Settings.model_fields.keys() - read
    assert unread == set(), "nothing in app/ reads settings. and this name"


def test_what_a_table_can_be_protected_with_is_an_option_and_an_argument() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert inspect.signature(alembic.protect).parameters["asked"].annotation == Unpack[ProtectOptions]
    for name in [*inspect.signature(plan_protect).parameters][2:]:
        assert name in ProtectOptions.__annotations__, f"protect() and alembic.protect() have no argument {name}"
        option = next((parameter for parameter in command.params if parameter.name == name), None)
        assert option is not None, f"cli/protect.py: the command has no option whose parameter is called {name}"
        assert f"`{name}`" in (ROOT / "docs" / "alembic.md").read_text("utf-8"), f"docs/alembic.md has no `{name}`"
        shown = any(f"{spelled} " in pages or f"{spelled}`" in pages for spelled in option.opts)
        assert shown, f"no page in docs/ shows {option.opts[-1]}: docs/protect.md"


def test_a_setting_is_explained_on_a_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    for name in Settings.model_fields:
        spelled = (f"FENCEPOST_{name.upper()}", f"--{name.replace('_', '-')}")
        named = any(re.search(rf"{re.escape(each)}(?![\w-])", pages) for each in spelled)
        assert named, f"no page in docs/ names {' or '.join(spelled)}: docs/operations.md"


RAISED = re.compile(r"(?:ERRCODE = |fencepost\.refuse\()'(FP\w{3})'")
NOT_BY_DIRECT_SQL = {"FP000", "FP005", "FP403"}
"""Raised in the gateway's own statements only."""


def raised() -> set[str]:
    """Collect the SQLSTATEs of our own that functions of the schema raise."""
    texts = [(ROOT / path).read_text("utf-8") for path in tracked() if path.parts[0] in ("app", "migrations")]
    return {code for text in texts for code in RAISED.findall(text)}


def test_an_sqlstate_of_ours_is_read_documented_and_tested() -> None:
    def text(path: str) -> str:
        return (ROOT / path).read_text("utf-8")

    readers = text("app/fencepost/server/gateway/refusals.py") + text("app/fencepost/server/postgres/errors.py")
    codes = raised()
    assert len(codes) > 5
    refuses = {path.name for path in tracked() if path.suffix == ".sql" and re.search("'FP(409|018)'", text(str(path)))}
    assert refuses == {"judging.sql", "bounds.sql"}, "by its mark, or its bounds, and nowhere else"
    for code in codes:
        assert code in readers, f"{code}: _DETAIL_MEMBERS in gateway/refusals.py"
        assert code in text("docs/direct-sql.md"), f"{code}: the table of SQLSTATEs in docs/direct-sql.md"
        tested = code in text("tests/direct_sql/test_errors.py")
        assert tested != (code in NOT_BY_DIRECT_SQL), f"{code}: its message in tests/direct_sql/test_errors.py"


def columns_of_protected() -> set[str]:
    text = (ROOT / "migrations/schema/protected.sql").read_text("utf-8")
    body = text.partition("CREATE TABLE fencepost.protected (\n")[2].partition("\n);")[0]
    return set(re.findall(r"^  (\w+) +\w", body, re.MULTILINE))


BY_DEFAULT = {"protected_at", "protected_by"}
"""Who protected a table first, and when."""
KEPT_BY_TRIGGERS = {"relation", "partitions"}
"""What the row is found by; and what event triggers keep up to date, by which the protection does not change."""


def test_every_column_of_a_protection_is_stored_changed_and_read() -> None:
    columns = columns_of_protected()
    assert {"name", "max_jump"} <= columns
    text = inspect.getsource(ddl.TableDdl)
    inserted = re.search(r"INSERT INTO fencepost\.protected \(([^)]*)\)", re.sub(r'"\s*f"', "", text))
    assert inserted is not None
    stored = set(re.findall(r"\w+", inserted[1]))
    changed = {into for into, of in re.findall(r"(\w+) = excluded\.(\w+)", text) if into == of}
    assert stored == columns - BY_DEFAULT, "the INSERT in ops/ddl.py"
    assert changed == stored - {"relation"}, "its ON CONFLICT in ops/ddl.py"
    read = set(re.findall(r"\bp\.(\w+)", PROTECTED))
    assert read == stored - KEPT_BY_TRIGGERS, "PROTECTED in postgres/catalog_cache.py"
    now = set(re.findall(r"\bp\.(\w+) AS registered_", inspect.getsource(checks)))
    assert now == read, "the query of Registration in ops/checks.py"


def test_the_harness_may_import_what_is_allowed_and_no_new_package() -> None:
    allowed = {"fencepost.client", "fencepost.server", "fencepost.server.ops", "fencepost.testing"}
    packages = {
        f"{top.__name__}.{each.name}" for top in (fencepost, server) for each in pkgutil.iter_modules(top.__path__)
    }
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each.get("source_modules") == ["fencepost.testing"]]
    assert set(contract["forbidden_modules"]) | {"fencepost.__main__"} == packages - allowed | {"fencepost.__main__"}
