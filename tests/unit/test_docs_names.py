"""What documents, comments and docstrings name exists in the clone: files, folders, links, objects in the schema."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]

FILE = re.compile(r"(?<![\w./{}<>$:@%~*-])((?:[\w.-]+/)*[\w-]+\.(?:py|sql|md|mako))\b(?![/({=])")
IN_FILE = re.compile(r"((?:[\w-]+/)+\w+\.py)::(\w+)")
PLACEHOLDERS = {"file.py", "invoices.py"}  # the second is written by the page that names it
LINK = re.compile(r"\]\(([^)\s]+)\)")
OF_THE_SCHEMA = re.compile(r"`fencepost\.([a-z_]+)(?:\.[a-z_]+)?(?:\([^`]*\))?`")
MADE = re.compile(r"\b(?:TABLE|SEQUENCE|VIEW|TYPE|FUNCTION|TRIGGER) (?:fencepost\.)?([a-z_]+)")
SETTING = re.compile(r"'fencepost\.([a-z_]+)'")
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
    missing = {
        f"{path}: {name}" for path in with_prose() for name in FILE.findall(prose(path))
        if not name.startswith("../") and name not in files() | PLACEHOLDERS
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
    named = {each for path in with_prose() for each in IN_FILE.findall(prose(path))}
    assert len(named) > 30
    missing = {(file, name) for file, name in named if file not in files() or name not in defined_in(file)}
    assert missing == set()


@cache
def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    links = [(ROOT / path, each) for path in pages() for each in LINK.findall(FENCED.sub("", prose(path)))]
    for page, target in links:
        url = urlsplit(target)
        if url.scheme:
            continue
        leads_to = (page.parent / unquote(url.path)).resolve() if url.path else page
        assert leads_to.exists(), f"{page}: {target}"
        assert not url.fragment or url.fragment in anchors(leads_to), f"{page}: {target}"


def test_objects_of_the_schema_that_documents_name_exist() -> None:
    texts = {path: (ROOT / path).read_text("utf-8") for path in tracked() if path.suffix in (".sql", ".py")}
    known = {name for path, text in texts.items() if path.suffix == ".sql" for name in MADE.findall(text)}
    known |= {name for text in texts.values() for name in SETTING.findall(text)}
    ours = [path for path in tracked() if path.parts[:2] == ("app", "fencepost")]
    known |= {path.stem for path in ours} | {path.parts[2] for path in ours}
    assert {"raise_mark", "marks", "tokens", "break_glass"} <= known
    missing = {
        f"{path}: fencepost.{name}" for path in pages()
        for name in OF_THE_SCHEMA.findall((ROOT / path).read_text("utf-8")) if name not in known
    }  # fmt: skip
    assert missing == set()
