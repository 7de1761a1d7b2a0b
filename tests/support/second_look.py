"""What tools/run_tests.py has to know of a run, noted in pytest's cache; and what passed only alone, in the last one.

With --part=failed and --last-failed, those tests run once more that failed before. Those that pass now lost against a
busy machine: they are listed, and are to be mended. What an oracle found (violations.py) is final: the run is red.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.selection import LATER, LEFT, forbidden_skips
from tests.support.violations import violations_in

MOST: Final = 10
"""How many tests of a run may pass only alone. With more the machine, or the suite, is not to be relied on."""
RUN: Final = "fencepost/run"
"""In the cache: `failed`, the message of each test that failed, by its id; `final`, whether more is wrong than tests
that may pass alone (a violation, a skip that CI forbids, a file that could not be read, a run that was stopped);
`later`, the file of each test that was left to the run of those marked `realtime`; `left`, what was left to which
command.
"""
_LINES: Final = 12
"""How many lines of a failure's message are listed."""
_VIOLATION: Final = "violation"


def pytest_configure(config: pytest.Config) -> None:
    if config.option.part != "all" and not hasattr(config, "workerinput"):  # workers of xdist hand their reports over
        config.pluginmanager.register(Noted(config), "noted-run")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read only the files of which the run before has left something: reading all takes seconds."""
    noted = config.pluginmanager.get_plugin("noted-run")
    if config.option.part != "realtime" or noted is None or not collection_path.is_file():
        return None
    return True if str(collection_path) not in noted.before["later"] else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: "pytest.CallInfo[None]") -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what an oracle found into the report, which alone goes from a worker of xdist to its controller."""
    report = yield
    found = violations_in(call.excinfo.value if call.excinfo else None)
    report.user_properties += [(_VIOLATION, str(each)) for each in found if report.failed]
    return report


class Noted:
    """One run; `before`: what the run before has noted."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self._config, self._cache = config, config.cache
        self.before: dict[str, Any] = self._cache.get(RUN, {"failed": {}, "final": False, "later": [], "left": []})
        self._passed: set[str] = set()
        self._failed: dict[str, str] = {}
        self._final = False
        self._violations: list[str] = []

    @property
    def _alone(self) -> list[str]:
        """The tests that passed only alone."""
        again = self._config.option.part == "failed"
        return [each for each in self.before["failed"] if again and each in self._passed - self._failed.keys()]

    @property
    def _missing(self) -> list[str]:
        again = self._config.option.part == "failed"
        return [each for each in self.before["failed"] if again and each not in self._passed | self._failed.keys()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, of its fixtures, or of the worker that ran it; print what an oracle found."""
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._passed.add(report.nodeid)
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        text = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
        self._failed.setdefault(report.nodeid, text)
        for text in [str(text) for name, text in report.user_properties if name == _VIOLATION]:
            self._final = True
            self._reporter.ensure_newline()
            self._violations.append(f"VIOLATION {report.nodeid}: {text}")
            self._reporter.write_line(self._violations[-1], red=True, bold=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests are not known. Workers of xdist run the others all the same."""
        self._final |= report.failed

    def pytest_internalerror(self) -> None:
        """Note that pytest itself failed, here or in a worker."""
        self._final = True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Have the end of the run of what is left name what was left in all files."""
        if session.config.option.part == "realtime":
            session.config.stash[LEFT] = {(command, kind): count for command, kind, count in self.before["left"]}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note the run, and have it end red with too many that pass alone."""
        self._final |= bool(session.shouldfail or session.shouldstop or forbidden_skips(self._reporter))
        self._cache.set(
            RUN,
            {
                "failed": {**self.before["failed"], **self._failed},
                "final": self.before["final"] or self._final,
                "later": session.config.stash[LATER],
                "left": [(*each, count) for each, count in session.config.stash[LEFT].items()],
            },
        )
        if len(self._alone) > MOST or self._missing or (self._config.option.part == "failed" and self._final):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List what an oracle found, and what passed only alone, with the message of its first failure."""
        if self._violations:
            terminalreporter.section("violations: no second look", red=True)
        for each in self._violations:
            terminalreporter.line(each)
        for what, tests, red in (
            ("failed before, and was skipped now or did not run: red", self._missing, True),
            (f"passed only alone: {len(self._alone)} ({MOST} may)", self._alone, len(self._alone) > MOST),
        ):
            if tests:
                terminalreporter.section(what, red=red, yellow=not red)
            for test in tests:
                lines = self.before["failed"][test].splitlines()
                terminalreporter.line("\n    ".join([test, *lines[:_LINES]]))

    @property
    def _reporter(self) -> pytest.TerminalReporter:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        return reporter
