"""Which tests `make test` runs, and what it names at its end.

`make test` leaves two kinds to `make test-all`, which is `pytest --all` and runs everything:

- tests marked `long("kind")`: storms, soaks, failovers and the like. Each rule has a stepped race test as well.
- tests on the second PostgreSQL, but for those marked `versions`: they are about what PostgreSQL's versions do
  differently (its catalogs, our DDL, triggers, statements and migrations).

Folders in ONE_SERVER never run on the second PostgreSQL: what they test knows it only through the gateway.
A test that is asked for by name (`file.py::test`, `-k`, `-m`) always runs; so do the long tests of a named file.
"""

import os
from collections import Counter

import pytest
from tests.support.postgres import SERVERS, first_server

ONE_SERVER = frozenset({"client", "cli", "conformance", "queues", "sources", "testing", "torture"})
CHOSEN_BY = ("postgres", "bin_dir", "server_name")
"""The parameters that choose which PostgreSQL a test runs on: the session's, or one that the test starts."""
KUBE = ".ci/kube-apiserver"
LEFT = pytest.StashKey[dict[str, int]]()
"""How many tests of which kind were left to `make test-all`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run also what `make test` leaves to `make test-all`")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = {}


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take away what is not for this run."""
    first, everything, long_too = first_server(), _everything(config), _named_files(config)
    left: Counter[str] = Counter()
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        kind = None if everything else kind_left(item, first, long_too=long_too)
        if kind is not None:
            left[kind] += 1
        (others if kind is not None or runs_nowhere(item, first) else chosen).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen
    config.stash[LEFT] = dict(left)


def _everything(config: pytest.Config) -> bool:
    """Whether all that was collected runs: it was asked for with --all, or by name, or failed before."""
    by_name = any("::" in argument for argument in config.args)
    option = config.option
    return bool(by_name or option.all or option.keyword or option.markexpr or option.lf)


def _named_files(config: pytest.Config) -> bool:
    """Whether the command line names files, and not folders."""
    return all(argument.endswith(".py") for argument in config.args)


def _server(item: pytest.Item) -> str | None:
    """Give the PostgreSQL that a test runs on, one of SERVERS; None when it needs none."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return next((parameters[name] for name in CHOSEN_BY if parameters.get(name) in SERVERS), None)


def runs_nowhere(item: pytest.Item, first: str) -> bool:
    """Whether it would show on this PostgreSQL nothing that it does not show on the first."""
    return item.path.parent.name in ONE_SERVER and _server(item) not in {None, first}


def kind_left(item: pytest.Item, first: str, *, long_too: bool) -> str | None:
    """Give what a test is that `make test-all` alone runs, in the plural; None when `make test` runs it."""
    if runs_nowhere(item, first):
        return None
    if not long_too and (marker := item.get_closest_marker("long")):
        return str(marker.args[0])
    server = _server(item)
    if server not in {None, first} and item.get_closest_marker("versions") is None:
        return f"tests on {server} that {first} ran"
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was left to the process that prints. In CI nothing may be skipped: .ci/run installs what is missing."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # a worker of xdist
        output["left"] = session.config.stash[LEFT]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and forbidden_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take it from one of xdist's workers: each has collected everything."""
    output = getattr(node, "workeroutput", {})
    config: pytest.Config = getattr(node, "config")  # noqa: B009 - xdist has no type for it
    config.stash[LEFT] = output.get("left", config.stash[LEFT])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what could not run here and how to enable it, and what was left to `make test-all`."""
    if reasons := _lacking(terminalreporter):
        terminalreporter.section("not run on this machine")
        for reason in sorted(reasons):
            terminalreporter.line(
                reason if KUBE in reason else f"{reason}  (`make test-servers` as root installs all other servers)"
            )
    if left := config.stash[LEFT]:
        terminalreporter.section(f"left to `make test-all`: {sum(left.values())} tests")
        for kind, count in sorted(left.items(), key=lambda each: -each[1]):
            terminalreporter.line(f"{count:6} {kind}")


def _lacking(reporter: pytest.TerminalReporter) -> set[str]:
    """Give why tests were skipped, but for those about what a lock service does not promise: these run nowhere."""
    skipped = reporter.stats.get("skipped", [])
    reasons = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped}
    return {reason for reason in reasons if not reason.startswith("capability: ")}


def forbidden_skips(reporter: pytest.TerminalReporter) -> set[str]:
    """Give why tests were skipped that CI wants run: all but for a kube-apiserver that .ci/run could not build."""
    if not os.environ.get("FENCEPOST_NO_SKIPS"):
        return set()
    without_kube = bool(os.environ.get("FENCEPOST_WITHOUT_KUBE"))
    return {reason for reason in _lacking(reporter) if not (without_kube and KUBE in reason)}
