"""What of a run's failures gets a second look, and what came of it: the tests' side of tools/run_tests.py.

A run with --failures=FILE writes down what failed. The second run, with --first=FILE, runs those tests again, one after
another, with nothing beside them. It lists those that pass now: each lost against a busy machine and is to be mended.
The run is green all the same, unless there are more than MOST of them. What an oracle found (violations.py) is printed
when it is found, and gets no second look.
"""

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.support.selection import LATER, LEFT, forbidden_skips
from tests.support.violations import violations_in

MOST: Final = 10
"""How many tests of a run may pass only alone. With more the machine, or the suite, is not to be relied on."""
_LINES: Final = 12
"""How many lines of a failure's message are listed."""
_VIOLATION: Final = "violation"
_BEFORE: Final = pytest.StashKey["Failures"]()
"""What the run before has written down, where this one is of the tests marked `realtime`."""


@dataclass
class Failures:
    """What failed in a run: the message of each test, by its id, and what oracles found."""

    messages: dict[str, str] = field(default_factory=dict)
    violations: dict[str, str] = field(default_factory=dict)
    incomplete: bool = False
    """Whether tests may not have run: a skip that CI forbids, a file that could not be read, a run that was stopped."""

    later: list[str] = field(default_factory=list)
    """The files of the tests that were left to the run of those that are marked `realtime`, one for each test."""

    left: list[tuple[str, str, int]] = field(default_factory=list)
    """What was left to which command: by this and their kind, how many tests."""

    @property
    def worth_a_second_look(self) -> bool:
        """Whether all that is wrong are tests that may pass alone, and so few that it is worth the time."""
        return 0 < len(self.messages) <= 5 * MOST and not self.violations and not self.incomplete

    def and_of(self, later: "Failures") -> "Failures":
        """Put those of the run that followed to these."""
        return Failures(
            {**self.messages, **later.messages},
            {**self.violations, **later.violations},
            self.incomplete or later.incomplete,
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> "Failures":
        return cls(**json.loads(path.read_text("utf-8")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, metavar="FILE", help="write down what failed, for a second look")
    parser.addoption("--before", type=Path, metavar="FILE", help="what that run, of all other tests, wrote down")
    parser.addoption("--first", type=Path, metavar="FILE", help="this is the second look at what that run wrote down")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.before is not None:
        config.stash[_BEFORE] = Failures.read(config.option.before)
    if not hasattr(config, "workerinput"):  # a worker of xdist hands its reports to the process that started it
        first: Path | None = config.option.first
        config.pluginmanager.register(Look(config, None if first is None else Failures.read(first)), "second-look")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read only the files of which the run before has left something: reading all takes seconds."""
    before = config.stash.get(_BEFORE, None)
    return True if before and collection_path.is_file() and str(collection_path) not in before.later else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the end of this run name what was left in all files."""
    if (before := session.config.stash.get(_BEFORE, None)) is not None:
        session.config.stash[LEFT] = {(command, kind): count for command, kind, count in before.left}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: "pytest.CallInfo[None]",
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what an oracle found into the report, which alone goes from a worker of xdist to its controller."""
    report = yield
    found = violations_in(call.excinfo.value if call.excinfo else None)
    report.user_properties += [(_VIOLATION, str(each)) for each in found if report.failed]
    return report


class Look:
    """One run, and the run before it if this is the second look."""

    def __init__(self, config: pytest.Config, first: Failures | None) -> None:
        self._config = config
        self._first = first
        self._passed: set[str] = set()
        self._failures = Failures()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, of its fixtures, or of the worker that ran it."""
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._passed.add(report.nodeid)
        if not report.failed:
            return
        self._failures.messages.setdefault(report.nodeid, _message(report))
        found = [str(text) for name, text in report.user_properties if name == _VIOLATION]
        if found:
            self._failures.violations.setdefault(report.nodeid, "\n".join(found))
            self._reporter.ensure_newline()
            self._reporter.write_line(f"VIOLATION {report.nodeid}: {_beginning(found[0])}", red=True, bold=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests are not known. Workers of xdist run the others all the same."""
        self._failures.incomplete |= report.failed

    def pytest_internalerror(self) -> None:
        """Note that pytest itself failed, here or in a worker."""
        self._failures.incomplete = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write down what failed, and have the second look end red with too many that pass alone."""
        stopped = session.shouldfail or session.shouldstop
        self._failures.incomplete |= bool(stopped or forbidden_skips(self._reporter))
        self._failures.later = session.config.stash[LATER]
        self._failures.left = [(*each, count) for each, count in session.config.stash[LEFT].items()]
        if (path := session.config.option.failures) is not None:
            self._failures.write(path)
        if self._first is not None and (len(self._healed) > MOST or self._missing or self._failures.incomplete):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List what an oracle found, and what passed only alone."""
        if self._failures.violations:
            terminalreporter.section("violations: what an oracle found gets no second look", red=True)
            _list(terminalreporter, self._failures.violations)
        if self._first is None:
            return
        if self._missing:
            terminalreporter.section("failed before, and was skipped now or did not run", red=True)
            _list(terminalreporter, self._missing)
        if self._healed:
            many = len(self._healed) > MOST
            terminalreporter.section(f"passed only alone: {len(self._healed)}", red=many, yellow=not many)
            _list(terminalreporter, self._healed)
            if many:
                terminalreporter.line(f"More than {MOST}: the run is red.")

    @property
    def _healed(self) -> dict[str, str]:
        assert self._first is not None
        healed = self._passed - self._failures.messages.keys()  # its teardown may fail
        return {test: message for test, message in self._first.messages.items() if test in healed}

    @property
    def _missing(self) -> dict[str, str]:
        assert self._first is not None
        seen = self._passed | self._failures.messages.keys()
        return {test: message for test, message in self._first.messages.items() if test not in seen}

    @property
    def _reporter(self) -> pytest.TerminalReporter:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter


def _message(report: pytest.TestReport) -> str:
    """Give what a failure says, without the way to it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
    return _beginning(text)


def _beginning(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(lines if len(lines) <= _LINES else [*lines[:_LINES], f"… {len(lines) - _LINES} lines more"])


def _list(reporter: pytest.TerminalReporter, messages: dict[str, str]) -> None:
    for test, message in messages.items():
        reporter.line(test)
        for line in message.splitlines():
            reporter.line(f"    {line}")
