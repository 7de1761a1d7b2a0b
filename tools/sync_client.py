"""Writes the methods of the synchronous client: `python -m tools.sync_client`, which `make format` runs.

`SyncClient`, `SyncLease` and `SyncTerm` run the asynchronous client on an event loop in a thread of its own. Most of
their methods only pass a call on, with the signature and the docstring of the asynchronous method. They are made here,
of client.py, rows/rows.py, queued/submit.py, elections/campaign.py and leases/lease.py. What is more than passing on is
written by hand, in the other files of the folder sync.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[1] / "app" / "fencepost" / "client"

BY_HAND: Final = frozenset({"aclose", "batch", "leaders", "lost", "operation"})
"""Public methods whose synchronous counterpart is written by hand."""
INTERNAL: Final = frozenset({"end", "on_loss", "renew", "send", "trust", "write"})
"""Methods of a lease that only the client itself calls."""
WITHOUT: Final = frozenset({"cancel_on_loss"})
"""Parameters that no synchronous call has: a thread cannot be cancelled."""
WRAPPED: Final = {
    "Lock": ("sync.leases", "SyncLock"),
    "Campaign": ("sync.elections", "SyncCampaign"),
    "QueuedWrite": ("sync.queued_write", "SyncQueuedWrite"),
    "Submit": ("sync.submit", "SyncSubmit"),
}
"""What a method returns that has methods of its own, and what a synchronous one returns in its place."""
UNWRAPPED: Final = {"Lease": ("sync.leases", "SyncLease")}
"""What a method takes, and what a synchronous one takes in its place."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Written:
    """A class to write. `of`: (module, class) with the asynchronous methods. `inner`: the attribute that has them, and
    `type` its (module, class).
    """

    name: str
    docstring: str
    of: Sequence[tuple[str, str]]
    inner: str
    type: tuple[str, str]


LEASE: Final = ("leases.lease", "Lease")
TERM: Final = ("elections.campaign", "Term")
CLIENT_TYPE: Final = ("client", "Client")
ELECTIONS: Final = ("elections.campaign", "Elections")
ROWS: Final = ("rows.rows", "Rows")
SUBMIT: Final = ("queued.submit", "Submit")

FILES: Final = {
    "sync/lease_calls.py": (
        Written("SyncLeaseCalls", "The calls of a SyncLease.", [LEASE], "asynchronous", LEASE),
        Written("SyncTermCalls", "Those that a SyncTerm has besides.", [TERM], "asynchronous", TERM),
    ),
    "sync/client_calls.py": (
        Written("SyncClientCalls", "The calls of a SyncClient.", [CLIENT_TYPE, ELECTIONS], "_client", CLIENT_TYPE),
    ),
    "sync/row_calls.py": (
        Written("SyncRowCalls", "Those of a SyncClient that are about rows.", [ROWS], "_client", CLIENT_TYPE),
    ),
    "sync/submit_calls.py": (
        Written("SyncSubmitCalls", "The calls of a SyncSubmit.", [SUBMIT], "asynchronous", SUBMIT),
    ),
}

HEADER: Final = '''"""Calls that are passed on to the asynchronous client, on the event loop of the synchronous one.

Written by tools/sync_client.py, from {sources}.
Do not edit: change these, and run `make format`.
"""
'''


def text_of(file: str) -> str:
    """Give the text of one of FILES."""
    module = _Module()
    classes = [module.written(each) for each in FILES[file]]
    sources = " and ".join(sorted({str(_path(name)) for each in FILES[file] for name, _ in each.of}))
    return _formatted(CLIENT / file, "\n".join([HEADER.format(sources=sources), *sorted(module.imports), *classes]))


def _path(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


class _Module:
    """One file: collects the imports that its classes need."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self._known: dict[str, str] = {}

    def written(self, each: Written) -> str:
        self._import("sync.loop", "Loop")
        body = []
        for module, name in each.of:
            tree = ast.parse((CLIENT / _path(module)).read_text("utf-8"))
            self._known = dict(_importable(module, tree))
            found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
            body += [self._attribute(*pair, each.inner) for pair in _documented(found)]
            body += [self._function(node, each) for node in found.body if isinstance(node, Function) and _taken(node)]
        self._import(*each.type)
        head = [
            f"class {each.name}:",
            f'    """{each.docstring}"""',
            f"    {each.inner}: {each.type[1]}",
            "    _loop: Loop",
        ]
        return "\n".join([*head, *body])

    def _import(self, module: str, name: str) -> None:
        self.imports.add(f"from fencepost.client.{module} import {name}")

    def _use(self, *names: str) -> None:
        """Import those of the names that the source's module imports or has."""
        self.imports |= {self._known[name] for name in names if name in self._known}

    def _attribute(self, node: ast.AnnAssign, docstring: str, inner: str) -> str:
        name, annotation = ast.unparse(node.target), self._annotation(node.annotation)
        return _indented(
            f'@property\ndef {name}(self) -> {annotation}:\n    """{docstring}"""\n    return self.{inner}.{name}'
        )

    def _annotation(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        for name in _names(node):
            if name in UNWRAPPED | WRAPPED:
                self._import(*(UNWRAPPED | WRAPPED)[name])
            else:
                self._use(name)
        return ast.unparse(_Synchronous().visit(ast.parse(ast.unparse(node))))

    def _function(self, node: Function, each: Written) -> str:
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        self._use(*decorators)
        arguments = _without(node.args)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            self._use(*_names(default))
        call = f"({', '.join(_passed(arguments))})"
        for argument in (*arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                argument.annotation = ast.Name(self._annotation(argument.annotation))
        returns = "None" if node.returns is None else self._annotation(node.returns)
        lines = [*(f"@{each}" for each in decorators), f"def {node.name}({ast.unparse(arguments)}) -> {returns}:"]
        if docstring := ast.get_docstring(node, clean=False):
            lines.append(f'    """{_of_threads(docstring)}"""')
        lines += [f"    {line}" for line in self._body(node, decorators, call, returns, each)]
        return _indented("\n".join(lines))

    def _body(self, node: Function, decorators: list[str], call: str, returns: str, each: Written) -> list[str]:
        if "overload" in decorators:
            return ["..."]
        if node.name == "__init__":
            return ["self._loop = Loop()", f"self.{each.inner} = {each.type[1]}{call}"]
        asked = f"self.{each.inner}.{node.name}"
        if "property" not in decorators:
            asked += call
        if isinstance(node, ast.AsyncFunctionDef):
            asked = f"self._loop.run({asked.removesuffix('()') if call == '()' else f'lambda: {asked}'})"
        wrapper = next((name for _, name in WRAPPED.values() if name == returns.partition("[")[0]), None)
        if wrapper is not None:
            asked = f"{wrapper}({asked}, self._loop)"
        return [asked if returns == "None" else f"return {asked}"]


class _Synchronous(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        _, name = (UNWRAPPED | WRAPPED).get(node.id, ("", node.id))
        return ast.Name(name)


def _importable(file: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give how each name is imported that a module imports or defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, f"from {node.module} import {alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, f"import {alias.name}") for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            yield node.name, f"from fencepost.client.{file} import {node.name}"


def _documented(found: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Give the public attributes of a class that are declared with a docstring."""
    for node, after in zip(found.body, found.body[1:], strict=False):
        match node, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(docstring))) if name[0] != "_":
                yield node, docstring


def _taken(node: Function) -> bool:
    public = not node.name.startswith("_") or (node.name == "__init__" and bool(node.args.kwonlyargs[3:]))
    return public and node.name not in BY_HAND | INTERNAL


def _without(arguments: ast.arguments) -> ast.arguments:
    """Leave out the parameters of WITHOUT: they are keyword-only."""
    kept = [
        pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[0].arg not in WITHOUT
    ]
    arguments.kwonlyargs, arguments.kw_defaults = [pair[0] for pair in kept], [pair[1] for pair in kept]
    return arguments


def _passed(arguments: ast.arguments) -> Iterator[str]:
    for argument in arguments.args[1:]:
        yield _unwrapped(argument)
    for argument in arguments.kwonlyargs:
        yield f"{argument.arg}={_unwrapped(argument)}"


def _unwrapped(argument: ast.arg) -> str:
    if argument.annotation is not None and not UNWRAPPED.keys().isdisjoint(_names(argument.annotation)):
        return f"None if {argument.arg} is None else {argument.arg}.asynchronous"
    return argument.arg


def _names(node: ast.expr | None) -> set[str]:
    return set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _of_threads(docstring: str) -> str:
    """Write of a synchronous call what is written of an asynchronous one."""
    lines = [line for line in docstring.split("\n") if line.strip().partition(":")[0] not in WITHOUT]
    return "\n".join(lines).replace("`async ", "`").replace("an `with`", "a `with`")


def _indented(text: str) -> str:
    first, *more = text.split("\n")
    inside = False
    lines = [f"\n    {first}"]
    for line in more:  # the lines of a docstring have their indentation
        lines.append(line if inside else f"    {line}")
        inside ^= line.count('"""') % 2 == 1
    return "\n".join(lines)


def _formatted(path: Path, text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(  # noqa: S603 - the linter of this environment
            [ruff, *command, "--stdin-filename", path, "-"], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    for name in FILES:
        (CLIENT / name).write_text(text_of(name), "utf-8")
