"""Documents name what exists, and have what they must: names, rules, sources, proof, problems, checklists."""

import ast
import html
import inspect
import json
import pkgutil
import re
import shlex
import subprocess
import tomllib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Unpack
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from tests.conformance.benches import BENCHES
from tests.races.mutants import MUTANTS
from tests.sources.test_shutdown import LIVE_BY_SESSION
from tools import checks_page, long_run, problems_page

import fencepost
from fencepost import alembic, server
from fencepost.cli.main import COMMANDS, main
from fencepost.cli.protect import protect as command
from fencepost.cli.status import CHECKS
from fencepost.server.fence.problem_types import PROBLEM_TYPES
from fencepost.server.fence.problems import example_problem
from fencepost.server.http.problems import problem_page, problem_routes
from fencepost.server.http.system import docs_routes
from fencepost.server.locks.source import KINDS, Capabilities, SourceContext, kind_of, make
from fencepost.server.ops.protect import ProtectOptions
from fencepost.server.postgres.catalog_cache import PROTECTED
from fencepost.server.postgres.tables import Catalog, Fence, Table
from fencepost.server.settings import Settings
from fencepost.testing.torture.config import SOURCES
from fencepost.testing.torture.workloads import WORKLOADS

# What documents, comments and docstrings name exists in the clone: files, folders, links, objects in the schema.


ROOT = Path(__file__).parents[2]

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
"""Documents that were once beside the project, and are in no clone."""


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the clone, and those that will be added to it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return tuple(Path(name) for name in listed if (ROOT / name).is_file() and "static" not in Path(name).parts)


def endings(path: Path) -> Iterator[str]:
    """A path, and all that is left when folders are taken off its front: what it may be called by."""
    for n in range(len(path.parts)):
        yield "/".join(path.parts[n:])


@cache
def files() -> frozenset[str]:
    return frozenset(ending for path in tracked() for ending in endings(path))


@cache
def folders() -> frozenset[str]:
    return frozenset(ending for path in tracked() for parent in path.parents for ending in endings(parent))


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


@cache
def prose(path: Path) -> str:
    """The text of a file; of Python its comments and docstrings, of SQL its comments and those on objects."""
    text = (ROOT / path).read_text("utf-8")
    if path.suffix == ".sql":
        return "\n".join(re.findall(r"--.*|COMMENT ON .*", text))
    if path.suffix != ".py":
        return text
    return "\n".join(re.findall(r'"""(?:.|\n)*?"""|#.*', text))


def with_prose() -> list[Path]:
    suffixes = (".md", ".py", ".sql", ".toml", ".yml", ".mako")
    others = {"Makefile", "Dockerfile", ".ci"}
    return [path for path in tracked() if path.suffix in suffixes or others & set(path.parts)]


def test_files_that_are_named_exist() -> None:
    file = re.compile(r"(?<![\w./{}<>$:@%~*-])((?:[\w.-]+/)*[\w-]+\.(?:py|sql|md|mako))\b(?![/({=])")
    # the second is written by the page that names it
    placeholders = {"file.py", "invoices.py"}
    missing = {
        f"{path}: {name}" for path in with_prose() for name in file.findall(prose(path))
        if not name.startswith("../") and name not in files() | placeholders
    }  # fmt: skip
    assert missing == set(), "a file was moved or renamed: name it as it is called now"


@cache
def defined_in(name: str) -> frozenset[str]:
    """Functions and classes of the module that a path names, and its strings: mutants have sentences for names."""
    (path,) = (path for path in tracked() if name in endings(path))
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text("utf-8"))))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in nodes if isinstance(node, definitions)}
    return frozenset(names | {str(node.value) for node in nodes if isinstance(node, ast.Constant)})


def test_functions_that_are_named_with_their_file_exist() -> None:
    """Written as pytest does: the file, two colons, the name."""
    in_file = re.compile(r"((?:[\w-]+/)+\w+\.py)::(\w+)")
    named = {each for path in with_prose() for each in in_file.findall(prose(path))}
    assert len(named) > 30
    missing = {(file, name) for file, name in named if file not in files() or name not in defined_in(file)}
    assert missing == set()


@cache
def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    link = re.compile(r"\]\(([^)\s]+)\)")
    links = [(ROOT / path, each) for path in pages() for each in link.findall(FENCED.sub("", prose(path)))]
    for page, target in links:
        url = urlsplit(target)
        if url.scheme:
            continue
        leads_to = (page.parent / unquote(url.path)).resolve() if url.path else page
        assert leads_to.exists(), f"{page}: {target}"
        assert not url.fragment or url.fragment in anchors(leads_to), f"{page}: {target}"


def test_objects_of_the_schema_that_documents_name_exist() -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in tracked() if path.suffix in (".sql", ".py")}
    made = re.compile(r"\b(?:TABLE|SEQUENCE|VIEW|TYPE|FUNCTION|TRIGGER) (?:fencepost\.)?([a-z_]+)")
    known = {name for path, text in texts.items() if path.suffix == ".sql" for name in made.findall(text)}
    setting = re.compile(r"'fencepost\.([a-z_]+)'")
    known |= {name for text in texts.values() for name in setting.findall(text)}
    ours = [path for path in tracked() if path.parts[:2] == ("app", "fencepost")]
    known |= {path.stem for path in ours} | {path.parts[2] for path in ours}
    assert {"raise_mark", "marks", "tokens", "break_glass"} <= known
    of_the_schema = re.compile(r"`fencepost\.([a-z_]+)(?:\.[a-z_]+)?(?:\([^`]*\))?`")
    missing = {
        f"{path}: fencepost.{name}" for path in pages()
        for name in of_the_schema.findall((ROOT / path).read_text("utf-8")) if name not in known
    }  # fmt: skip
    assert missing == set()


def test_the_architecture_is_one_page() -> None:
    """That its walk is the one that is walked: tests/integration/test_group_commit.py."""
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").split()) <= 900, "docs/ways.md has room"


# docs/rules.md has every rule that the project names; the code and the tests that it names exist.


RULES_PAGE = Path("docs/rules.md")
RULES_TEXT = (ROOT / RULES_PAGE).read_text("utf-8")
NUMBER = re.compile(r"(?<![\w.])R([1-9][0-9]?)\b(?!['\"])")
SECTION = re.compile(r"^## R([0-9]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SECTIONS = {int(number): text for number, text in SECTION.findall(RULES_TEXT)}
PLANNED = {number for number, text in SECTIONS.items() if ": not built yet.**" in text}
BUILT = sorted(SECTIONS.keys() - PLANNED)


@cache
def named_in(*roots: str) -> dict[int, set[str]]:
    """The rules that files under these folders name, and where."""
    found: dict[int, set[str]] = {}
    for path in tracked():
        inside = not roots or path.parts[0] in roots
        if inside and path != RULES_PAGE and path.suffix in (".py", ".sql", ".md", ".toml", ".yml"):
            for number in NUMBER.findall((ROOT / path).read_text("utf-8")):
                found.setdefault(int(number), set()).add(str(path))
    return found


def test_the_numbers_have_no_gap_and_none_comes_twice() -> None:
    assert [int(number) for number, _ in SECTION.findall(RULES_TEXT)] == list(range(1, len(SECTIONS) + 1))
    linked = {int(number) for number in re.findall(r"\[R\d+\]\(#r(\d+)\)", RULES_TEXT)}
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


# The table of docs/sources.md has what the sources declare of themselves.


SOURCES_PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text("utf-8")
URLS = {
    "redis": "redis://a",
    "rediss": "rediss://a",
    "redlock": "redlock://a,b,c",
    "zookeeper": "zookeeper://a",
    "etcd": "etcd://a",
    "etcds": "etcds://a",
    "kubernetes": "kubernetes://in-cluster",
    "postgres-advisory": "postgres-advisory:",
}
ORDER = {"source": "all locks", "lock": "one lock", "database": "all locks, drawn in PostgreSQL"}


def cells(capabilities: Capabilities, extra: str | None) -> list[str]:
    return [
        ORDER[capabilities.order],
        "yes" if capabilities.fair else "no",
        "the service" if capabilities.ttl_from_server else "the gateway that took it",
        f"{capabilities.least_ttl_ms} ms",
        "yes" if capabilities.verifies else "no",
        "nothing" if extra is None else f"`.[{extra}]`",
    ]


def source_rows() -> dict[str, list[str]]:
    """Read the table: by each scheme, what stands in its row."""
    found = {}
    for line in SOURCES_PAGE.splitlines():
        name, *others = [cell.strip() for cell in line.strip("|").split("|")]
        for scheme in re.findall(r"`([a-z-]+):(?://)?`", name):
            found[scheme] = others
    return found


@pytest.mark.parametrize("scheme", KINDS)
def test_each_source_is_described_as_it_is(scheme: str) -> None:
    assert scheme in URLS, "add a URL of this scheme to URLS"
    source = make(URLS[scheme], SourceContext("it", "postgresql://x@127.0.0.1/x"))
    assert source_rows().get(scheme) == cells(source.capabilities, KINDS[scheme][1]), (
        "its row in docs/sources.md, Which one"
    )


def test_no_source_is_described_that_is_not_there() -> None:
    assert set(source_rows()) == set(KINDS), "the table of docs/sources.md has the schemes of locks/source.py"


# docs/proof.md names tests, commands and workloads that exist, and has the figures of docs/proof.json.

PROOF_PAGE = (ROOT / "docs/proof.md").read_text()


def test_commands_that_show_a_bug_again_can_be_run() -> None:
    """Tests that are named with their file exist: see above."""
    known = CliRunner().invoke(main, ["torture", "--help"]).output
    proving_commands = sorted(set(re.findall(r"`((?:\.venv/bin/|fencepost )[^`]+)`", PROOF_PAGE)))
    for line in proving_commands:
        program, *words = shlex.split(line)
        if "pytest" in line:
            assert program == ".venv/bin/pytest"
            assert re.fullmatch(r"tests/\S+\.py::\w+", words[0]), line
            assert len(words) == 1, line
        if line.startswith("fencepost torture "):
            assert [word for word in words if word.startswith("--") and word not in known] == []


def test_each_workload_on_each_source_is_a_part_of_the_long_run() -> None:
    parts = {(part.workload, part.source) for part in long_run.parts()}
    for workload in ("fenced-set", "unfenced-set", "mutex", "blocks", "register", "client", "client-set"):
        assert {(workload, source) for source in SOURCES} <= parts
    assert ("idempotent", "builtin") in parts
    assert len({part.seed for part in long_run.parts()}) == len(long_run.parts())


def test_the_tables_are_those_of_the_figures() -> None:
    rows = json.loads(long_run.FIGURES.read_text())
    written = PROOF_PAGE.split(long_run.BEGIN)[1].split(long_run.END)[0].strip()
    assert written == long_run.tables(rows)


def test_the_figures_are_of_a_long_run_that_came_to_what_it_should() -> None:
    rows = json.loads(long_run.FIGURES.read_text())
    assert sum(row["operations"] for row in rows) >= 1_000_000
    assert len({kind for row in rows for kind in row["faults"]}) >= 10
    assert [row["command"] for row in rows if not long_run.is_as_promised(row)] == []
    assert {row["workload"] for row in rows} <= set(WORKLOADS)


def test_fresh_rows_take_the_places_of_those_of_the_same_parts_and_tell_their_day() -> None:
    before = json.loads(long_run.FIGURES.read_text())
    fresh = {**before[0], "operations": 7, "date": "2027-01-02"}
    gone = {**before[0], "seed": 9_999}
    rows = long_run.merged([*before, gone], [fresh])
    assert rows == [fresh, *before[1:]]
    assert f"Played 2027-01-02: the seeds {fresh['seed']}." in long_run.tables(rows)


# docs/choosing.md: every claim's evidence is there, and the table of guarantees is the code's.


CHOOSING = ROOT / "docs" / "choosing.md"


def capabilities() -> dict[str, Capabilities]:
    """What each source promises, by the scheme of its URL."""
    somewhere = SourceContext("locks", "postgresql://x@127.0.0.1/x")
    return {kind_of(url): make(url, somewhere).capabilities for url in URLS.values()}


def section(heading: str) -> str:
    """The part of choosing.md under a heading that begins so."""
    found = re.search(
        rf"^{re.escape(heading)}.*?\n(.*?)(?=^## |\Z)", CHOOSING.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, heading
    return found[1]


def rows_of_choosing(heading: str) -> list[list[str]]:
    """The cells of the table's rows in a section, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def listed() -> dict[str, str]:
    """What the section Evidence has, by its label: a URL, or path::name of a test."""
    found: dict[str, str] = {}
    for line in section("## Evidence").split("\n"):
        if not line:
            continue
        if cited := re.fullmatch(r"- (C\d+) \S.*: <(\S+)>", line):
            entries = [(cited[1], cited[2])]
        else:
            path = re.match(r"- `(tests/\S+\.py)`", line)
            assert path is not None, line
            entries = [(label, path[1] + name) for label, name in re.findall(r"(T\d+) `(::\w+)`", line)]
            assert entries, line
        for label, what in entries:
            assert label not in found, f"{label} is listed twice"
            found[label] = what
    return found


def test_each_test_that_is_named_exists() -> None:
    named = [what for label, what in listed().items() if label.startswith("T")]
    assert len(named) > 20
    for what in named:
        path, _, name = what.partition("::")
        assert name in defined_in(path), what


def test_what_is_listed_is_used_and_what_is_used_is_listed() -> None:
    text = CHOOSING.read_text("utf-8")
    claims = text[: text.index("## Evidence")]
    evidence = re.compile(r"\b[CT][1-9][0-9]*\b")
    assert set(evidence.findall(claims)) == set(listed())


def test_the_table_of_guarantees_is_the_codes() -> None:
    orders = {"its own, ordered over all locks": "source", "its own, ordered within each": "lock"}
    promised = {
        name[1 : name.index("]")]: (
            orders.get(tokens, "database" if tokens == "drawn in PostgreSQL" else tokens),
            {"first come, first served": True, "by chance": False}[waiters],
            ttl,
            {"the service": True, "the end of a session": False}[ended],
        )
        for name, tokens, waiters, ttl, ended in rows_of_choosing("## What each source guarantees")
    }
    assert promised == {
        name: (found.order, found.fair, f"{found.least_ttl_ms} ms", found.ttl_from_server)
        for name, found in capabilities().items()
    }


def test_each_source_has_its_rows() -> None:
    described = {row[0].strip("`") for row in rows_of_choosing("## What each source breaks on")}
    assert described == set(capabilities()) | {"built-in"}, (
        "docs/choosing.md, What each source breaks on: a row for each"
    )


# The pages under /problems/, the index page, and the shell of /docs.


NASTY = "<script>alert('x')</script>&\""


def nasty_table() -> Table:
    fence = Fence(NASTY, "strict", "external", "f", broken="")
    return Table(1, "public", NASTY, NASTY, "table", f"A comment {NASTY}", False, {}, (), fence)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    nasty = nasty_table()
    harmed = replace(nasty, name="harmed", fence=Fence("harmed", "strict", "external", "f", broken="a trigger is gone"))
    catalog = Catalog(1, {NASTY: nasty, "free": replace(nasty, name="free", fence=None), "harmed": harmed})
    app = FastAPI(docs_url=None)
    app.include_router(problem_routes())
    app.include_router(docs_routes(lambda: catalog, version="1.2.3", demo=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def test_every_problem_has_a_complete_page_with_an_example_of_its_own() -> None:
    for kind in PROBLEM_TYPES:
        text = html.unescape(re.sub(r"<[^>]+>", "", bytes(problem_page(kind).body).decode()))
        for part in (kind.title, kind.meaning, kind.action, str(kind.status), f'"type": "/problems/{kind.slug}"'):
            assert part.replace("`", "") in text, kind.slug
        assert (kind.code or "SQLSTATE") in text, kind.slug
        assert ("may be retried" in text) == kind.retryable, kind.slug
        example = example_problem(kind)
        assert example.type is kind
        assert example.detail != f"{kind.title}.", f"{kind.slug} has no example of its own in fence/problem_types.py"
        assert json.dumps(example.body())


def test_pages_in_docs_are_what_the_tools_write() -> None:
    for tool in (problems_page, checks_page):
        assert tool.PAGE.read_text("utf-8") == tool.render(), "run `make format`"


def test_a_check_of_doctor_is_one_entry_and_no_check_is_left_out() -> None:
    files = [path for path in tracked() if path.parts[0] == "app" and path.suffix == ".py"]
    texts = "".join((ROOT / path).read_text("utf-8") for path in files)
    entries = re.findall(r'\bCheck\(\s*"([^"]+)"', texts)
    assert sorted(entries) == sorted({check.name for checks in CHECKS.values() for check in checks})
    assert "\n2. " not in CONTRIBUTING.partition("\n### A check of")[2].partition("\n### ")[0], "one place"


async def test_the_index_escapes_table_names(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200
    assert "A comment &lt;script&gt;" in page.text
    assert 'href="v1/data/%3Cscript%3E' in page.text


async def test_the_index_shows_how_each_table_is_protected(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    badges = re.findall(r'>([^<]+)</a><br>.*?class="badge \w+">([^<]+)<', page.text)
    assert badges[1:] == [("free", "read only"), ("harmed", "fence damaged")]
    assert badges[0][1] == "protected, strict"


async def test_a_problem_that_there_is_not(client: httpx.AsyncClient) -> None:
    answer = await client.get("/problems/none")
    assert (answer.status_code, answer.json()["hint"]) == (404, "GET /problems lists them.")


async def test_docs_come_from_the_gateway_alone(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert "://" not in page.text
    assert "script-src 'self';" in page.headers["content-security-policy"]
    for asset in re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text):
        answer = await client.get(f"/{asset}")
        assert answer.status_code == 200
        assert "max-age" in answer.headers["cache-control"]


async def test_only_named_assets_are_served(client: httpx.AsyncClient) -> None:
    for name in ("README.md", "LICENSE", "nothing", "..%2Fdocs.py"):
        assert (await client.get(f"/docs/assets/{name}")).status_code == 404, name


# Steps of CONTRIBUTING.md's checklists that nothing else would miss.


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_example_of_a_stepped_race_is_the_file() -> None:
    shown = re.search(r"^```python\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert shown[1] == (ROOT / "tests/integration/test_stepping.py").read_text("utf-8")


@pytest.mark.parametrize("scheme", KINDS)
def test_a_source_has_its_page_its_bench_and_its_extra(scheme: str) -> None:
    kind = kind_of(f"{scheme}://x").removeprefix("postgres-")
    page = f"docs/sources/{kind_of(f'{scheme}://x')}.md"
    assert (ROOT / page).is_file(), f"write {page}; or, if {scheme} is another one over TLS, add it to registry._SAME"
    assert kind in BENCHES, f"write a class in tests/conformance/benches.py, and add {kind} to BENCHES there"
    extra = KINDS[scheme][1]
    extras = PROJECT["project"]["optional-dependencies"]
    assert extra is None or extra in extras, f"pyproject.toml has no extra {extra}"
    (of_all,) = extras["sources"]
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
    assert ("app/fencepost/server/gateway/plan.py", "_plan") in made_by


def test_a_setting_is_read_somewhere() -> None:
    readers = [path for path in tracked() if path.parts[0] == "app" and path.suffix == ".py"]
    read = {name for path in readers for name in re.findall(r"\bsettings\.(\w+)", (ROOT / path).read_text("utf-8"))}
    read |= {f"{name}_file" for name in read}  # which has what the other may have
    unread = Settings.model_fields.keys() - read
    assert unread == set(), "nothing in app/ reads settings. and this name"


PROTECTION = (ROOT / "migrations/schema/protection.sql").read_text("utf-8")


def test_what_a_table_can_be_protected_with_is_an_option_and_an_argument() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert inspect.signature(alembic.protect).parameters["asked"].annotation == Unpack[ProtectOptions]
    known = re.search(r"known CONSTANT jsonb := '({.*?})'", PROTECTION, re.DOTALL)
    assert known is not None
    assert json.loads(known[1]).keys() == ProtectOptions.__annotations__.keys(), "ops/protect.py, protection.sql"
    for name in ProtectOptions.__annotations__:
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
    # Raised in the gateway's own statements only.
    not_by_direct_sql = {"FP000", "FP005", "FP403"}
    for code in codes:
        assert code in readers, f"{code}: _DETAIL_MEMBERS in gateway/refusals.py"
        assert code in text("docs/direct-sql.md"), f"{code}: the table of SQLSTATEs in docs/direct-sql.md"
        tested = code in text("tests/direct_sql/test_plain_sql.py").partition("REFUSALS = [")[2]
        assert tested != (code in not_by_direct_sql), f"{code}: its message in tests/direct_sql/test_plain_sql.py"


def columns_of_protected() -> set[str]:
    text = (ROOT / "migrations/schema/protected.sql").read_text("utf-8")
    body = text.partition("CREATE TABLE fencepost.protected (\n")[2].partition("\n);")[0]
    return set(re.findall(r"^  (\w+) +\w", body, re.MULTILINE))


def test_every_column_of_a_protection_is_stored_changed_and_read() -> None:
    columns = columns_of_protected()
    assert {"name", "max_jump"} <= columns
    decided = set(re.findall(r"^  p\.(\w+) :=", PROTECTION, re.MULTILINE))
    # Who protected a table first, and when; and the partitions, which event triggers keep up to date.
    by_register = {"protected_at", "protected_by", "partitions"}
    assert decided == columns - by_register, "protection_asked in migrations/schema/protection.sql"
    read = set(re.findall(r"\bp\.(\w+)", PROTECTED))
    assert read == decided - {"relation"}, "PROTECTED in postgres/catalog_cache.py"


def test_the_harness_may_import_what_is_allowed_and_no_new_package() -> None:
    allowed = {"fencepost.client", "fencepost.server", "fencepost.server.ops", "fencepost.testing"}
    packages = {
        f"{top.__name__}.{each.name}" for top in (fencepost, server) for each in pkgutil.iter_modules(top.__path__)
    }
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each.get("source_modules") == ["fencepost.testing"]]
    assert set(contract["forbidden_modules"]) | {"fencepost.__main__"} == packages - allowed | {"fencepost.__main__"}
