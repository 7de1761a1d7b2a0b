"""Which tests `make test` runs, and what it names at its end.

There are two PostgreSQLs. Tests marked `versions` are about what its versions do differently (its catalogs, our DDL,
triggers, statements and migrations) and run on both. Each other test runs on one of them:

- `make test`: on the first. It leaves tests marked `long("kind")` to `make test-all`: storms, soaks, failovers, mutants
  and the like. Each rule has a stepped race test as well.
- `long("kind", by="make …")`: the command that runs them is another one, and the end of `make test-all` names it, too.
- `make test-all`, which is `pytest --all`: on the one that the name of its file chooses, so that each of the two runs
  about half of them.

Both run the tests marked `realtime` after all others and one at a time (tools/run_tests.py says --part=others, and
then --part=realtime): what they show is shown only by the clock, and nothing else is to run beside them.

Folders in ONE_SERVER never run on the second PostgreSQL: what they test knows it only through the gateway.
A test that is asked for by name (`file.py::test`, `-k`, `-m`) runs on both; the long tests of a named file run, too.
"""

import gc
import os
import zlib
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.support.postgres import SERVERS, installed_servers
from tools.audit import NOT_AUDITED

ONE_SERVER = frozenset({"client", "cli", "conformance", "queues", "sources", "testing", "torture"})
CHOSEN_BY = ("postgres", "bin_dir", "server_name")
"""The parameters that choose which PostgreSQL a test runs on: the session's, or one that the test starts."""
STORMS = frozenset({"robustness", "torture"})
"""Folders whose tests take longest, up to a minute each."""
KUBE = ".ci/kube-apiserver"
TEST_ALL = "make test-all"
LEFT = pytest.StashKey[dict[tuple[str, str], int]]()
"""How many tests were left to which command, by this and their kind."""
LATER = pytest.StashKey[list[str]]()
"""The files of the tests that are left to the run of those that are marked `realtime`, one for each test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run also what `make test` leaves to `make test-all`")
    parser.addoption(
        "--part",
        choices=("all", "others", "realtime", "failed"),
        default="all",
        help="a run of tools/run_tests.py: of tests not marked realtime, of these, of those that failed",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT], config.stash[LATER] = {}, []


def pytest_collection() -> None:
    """Have Python look for no garbage while tests are collected: what is made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Have it look again, but never through all that was collected."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take away what is not for this run."""
    by_name, servers, part = _by_name(config), installed_servers(), config.option.part
    everything, named = by_name or config.option.all, by_name or _named_files(config)
    left: Counter[tuple[str, str]] = Counter()
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    later: list[str] = []
    for item in items:
        long = None if named else item.get_closest_marker("long")
        command = TEST_ALL if long is None else long.kwargs.get("by", TEST_ALL)
        if not runs_on(item, servers, by_name=by_name, spread=everything or long is not None):
            others.append(item)
        elif long is not None and not (config.option.all and command == TEST_ALL):
            left[command, str(long.args[0])] += 1
            others.append(item)
        elif part in {"others", "realtime"} and (part == "realtime") != bool(item.get_closest_marker("realtime")):
            others.append(item)
            later += [str(item.path)] * (part == "others")
        else:
            chosen.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    # The first worker begins with the longest: one that began last went on for a minute while the others had ended.
    items[:] = sorted(chosen, key=lambda item: STORMS.isdisjoint(item.path.parts))
    config.stash[LEFT], config.stash[LATER] = dict(left), later


def _by_name(config: pytest.Config) -> bool:
    """Whether the tests of this run were asked for by name, or failed before."""
    option = config.option
    failed_before = getattr(option, "lf", False)  # pytest's cache may be switched off
    return bool(any("::" in each for each in config.args) or option.keyword or option.markexpr or failed_before)


def _named_files(config: pytest.Config) -> bool:
    """Whether the command line names files, and not folders."""
    return all(argument.endswith(".py") for argument in config.args)


def runs_on(item: pytest.Item, servers: Sequence[str], *, by_name: bool, spread: bool) -> bool:
    """Whether a test runs on the PostgreSQL that it was collected for.

    `servers`: those that are installed, the first of which runs what is not spread over them. A test marked `versions`
    is skipped with its reason where its server is not installed.
    """
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    server = next((parameters[name] for name in CHOSEN_BY if parameters.get(name) in SERVERS), None)
    if server is None:
        return True
    if item.path.parent.name in ONE_SERVER:
        return bool(server == servers[0])
    if by_name or item.get_closest_marker("versions"):
        return True
    # A number that the file's name always gives: `hash` gives each process, and so each worker of xdist, another one.
    number = zlib.crc32(item.path.name.encode())
    return bool(server == servers[number % len(servers) if spread else 0])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was left to the process that prints. In CI nothing may be skipped: .ci/run installs what is missing."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # a worker of xdist
        output["left"], output["later"] = session.config.stash[LEFT], session.config.stash[LATER]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and forbidden_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take it from one of xdist's workers: each has collected everything."""
    output = getattr(node, "workeroutput", {})
    config: pytest.Config = getattr(node, "config")  # noqa: B009 - xdist has no type for it
    config.stash[LEFT] = output.get("left", config.stash[LEFT])
    config.stash[LATER] = output.get("later", config.stash[LATER])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what could not run here and how to enable it, and what was left to `make test-all`."""
    reasons = [
        reason if KUBE in reason else f"{reason}  (`make test-servers` as root installs all other servers)"
        for reason in sorted(_lacking(terminalreporter))
    ]
    if config.option.all and NOT_AUDITED.exists():
        reasons.append(f"the audit of dependencies: {NOT_AUDITED.read_text()}")
    if reasons:
        terminalreporter.section("not run on this machine")
        for reason in reasons:
            terminalreporter.line(reason)
    left = config.stash[LEFT]
    for command in sorted({command for command, _ in left}, key=lambda each: each != TEST_ALL):
        kinds = {kind: count for (by, kind), count in left.items() if by == command}
        terminalreporter.section(f"left to `{command}`: {sum(kinds.values())} tests")
        for kind, count in sorted(kinds.items(), key=lambda each: -each[1]):
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
