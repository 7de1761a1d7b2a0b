"""Print how app/ and tests/ are cut: files, lines, what share of the lines is what, and pages outside of chapters.

    python -m tools.shape [--list]

CONTRIBUTING.md ("How the code is laid out") has the rule, tests/unit/test_tools.py the bounds. `--list` names the small
modules that one module imports, and the class names that stand in several modules.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = 80
"""A module with fewer lines, which one other module imports, is a page of that module's chapter."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Module:
    """A file of Python. Lines are counted as they stand in it, blank ones included."""

    name: str
    """As it is imported: `fencepost.server.gateway.write`."""
    path: Path
    lines: int
    imports: int
    docstrings: int
    tests: int
    """Lines of functions whose name begins with `test`, decorators included."""
    classes: tuple[str, ...]
    imported: frozenset[str]
    """What it imports, by full names; some are names within a module."""
    importers: set[str] = field(default_factory=set)

    @property
    def is_page(self) -> bool:
        """Whether it is under 80 lines and one other module imports it."""
        return self.lines < PAGE and len(self.importers) == 1 and self.path.name not in {"__init__.py", "__main__.py"}


@dataclass(frozen=True)
class Shape:
    """The figures of a tree."""

    modules: tuple[Module, ...]

    @property
    def files(self) -> int:
        """Files of Python."""
        return len(self.modules)

    @property
    def lines(self) -> int:
        """Lines of all files."""
        return sum(each.lines for each in self.modules)

    @property
    def pages(self) -> list[str]:
        """Paths of modules under 80 lines that one other module imports."""
        return sorted(str(each.path.relative_to(ROOT)) for each in self.modules if each.is_page)

    @property
    def shared_names(self) -> dict[str, list[str]]:
        """Class names that stand in several modules, with these. Names that begin with `_` are a module's own."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for module in self.modules:
            for name in module.classes:
                found[name].append(module.name)
        return {name: where for name, where in sorted(found.items()) if len(where) > 1}

    def share(self, kind: str) -> float:
        """The share of lines that are `imports`, `docstrings` or `tests`."""
        counted: int = sum(getattr(each, kind) for each in self.modules)
        return counted / self.lines


def shape(top: Path, package: str) -> Shape:
    """Read all files below `top`, which is imported as `package`."""
    modules = {each.name: each for each in (_read(path, top, package) for path in sorted(top.rglob("*.py")))}
    for module in modules.values():
        for name in module.imported:
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module.name:
                modules[target].importers.add(module.name)
    return Shape(tuple(modules.values()))


def _read(path: Path, top: Path, package: str) -> Module:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    parts = (package, *path.relative_to(top).with_suffix("").parts)
    return Module(
        name=".".join(parts).removesuffix(".__init__"),
        path=path,
        lines=len(text.splitlines()),
        imports=sum(_height(each) for each in nodes if isinstance(each, ast.Import | ast.ImportFrom)),
        docstrings=sum(_height(each) for each in _docstrings(nodes)),
        tests=sum(_height(each) for each in _tests(tree)),
        classes=tuple(each.name for each in tree.body if isinstance(each, ast.ClassDef) and each.name[0] != "_"),
        imported=frozenset(_imported(nodes)),
    )


def _height(node: ast.stmt) -> int:
    first = min((each.lineno for each in getattr(node, "decorator_list", [])), default=node.lineno)
    return (node.end_lineno or node.lineno) - first + 1


def _docstrings(nodes: list[ast.AST]) -> Iterator[ast.stmt]:
    """Give each string that stands as a statement: docstrings, and what is said below a field."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def _tests(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def app() -> Shape:
    """Read app/fencepost."""
    return shape(ROOT / "app" / "fencepost", "fencepost")


def tests() -> Shape:
    """Read tests/."""
    return shape(ROOT / "tests", "tests")


def line(name: str, found: Shape) -> str:
    """Say the figures of a tree in a line."""
    return (
        f"{name}: {found.files} files, {found.lines:,} lines ({found.share('imports'):.0%} imports, "
        f"{found.share('docstrings'):.0%} docstrings), {len(found.pages)} small modules with one importer"
    )


@click.command()
@click.option("--list", "listed", is_flag=True, help="Name the small modules and the class names that stand twice.")
def main(*, listed: bool) -> None:
    """Print the figures of app/ and tests/."""
    both = {"app": app(), "tests": tests()}
    told = [line(name, found) for name, found in both.items()]
    click.echo(f"shape: {'; '.join(told)}, {both['tests'].share('tests'):.0%} of lines in tests")
    if listed:
        for name, found in both.items():
            click.echo("\n".join((f"{name}, small modules with one importer:", *(f"  {page}" for page in found.pages))))
        click.echo("app, class names in several modules:")
        for name, where in both["app"].shared_names.items():
            click.echo(f"  {name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
