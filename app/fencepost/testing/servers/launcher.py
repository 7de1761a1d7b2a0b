"""A process that has loaded the command `fencepost` once, and forks for each run of it: 0.1 s in place of 1 to 2 s.

What runs in a fork is what `python -m fencepost ARGUMENTS` runs. The harness writes requests to this process's
stdin, as lines of JSON, and reads pids from its stdout; exit codes become files. It ends with the harness, and what
it has started ends with it.
"""

import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.testing.servers.processes import alive, owned_directory, remove_directory, wait_until
from fencepost.testing.servers.server import ServerError, Started

LOADED: Final = (
    "fencepost.cli.main",
    "fencepost.cli.migrate",
    "fencepost.cli.protect",
    "fencepost.cli.serve",
    "fencepost.cli.operate",
    "fencepost.server.serving.server",
    "fencepost.server.serving.worker",
    "fencepost.server.parts",
    "fencepost.server.serve",
)
"""What commands import. Only the launcher's process loads them: nothing that the tests import does."""


class Launched:
    """A process that a launcher has started; it can be used as one of subprocess."""

    def __init__(self, pid: int, exit_code: Path, launcher: "subprocess.Popen[str]") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit_code, self._launcher = exit_code, launcher

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            with suppress(FileNotFoundError):
                self.returncode = int(self._exit_code.read_text())
        if self.returncode is None and self._launcher.poll() is not None and not alive(self.pid):
            self.returncode = -signal.SIGKILL  # it ended with its launcher
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended. subprocess.TimeoutExpired after so many seconds."""
        seconds = float("inf") if timeout is None else timeout
        try:
            wait_until(lambda: self.poll() is not None, within=seconds)
        except TimeoutError as late:
            raise subprocess.TimeoutExpired("fencepost", seconds) from late
        return self.returncode or 0


class Launcher(Started):
    """The launcher, as the harness sees it. Start it in the main thread: it ends with the thread that started it."""

    def __init__(self) -> None:
        self._directory = owned_directory("fencepost-launcher-", Path(tempfile.gettempdir()))
        self._errors = self._directory / "launcher.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start loading; the first `launch` waits for its end."""
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
                [sys.executable, "-P", "-m", "fencepost.testing.servers.launcher", str(self._directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - it only calls prctl
            )

    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path | None = None
    ) -> Launched:
        """Start `fencepost ARGUMENTS`. Its output is appended to the files."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ServerError("the launcher has not been started")
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "output": str(output),
            "errors": str(errors or output),
        }
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise ServerError(f"fencepost cannot be loaded: {self._errors.read_text()[-2000:]}")
        return Launched(int(answer), self._directory / answer.strip(), process)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        """Run `fencepost ARGUMENTS` to its end, and return what it prints. ServerError with its message when it
        fails.
        """
        output, errors = self._directory / "output", self._directory / "errors"
        for file in (output, errors):
            file.write_text("")
        if self.launch(arguments, environment, output, errors).wait():
            raise ServerError(f"fencepost {' '.join(arguments)} failed: {errors.read_text().strip()}")
        return output.read_text()

    def stop(self) -> None:
        """End the launcher, and with it what it has started and still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._directory.exists():
            remove_directory(self._directory)


def serve_requests(directory: Path) -> None:
    """Load what commands need; then start one for each line of stdin, until stdin ends."""
    for name in LOADED:
        importlib.import_module(name)
    _build_once()
    gc.collect()
    gc.freeze()  # memory that is not written to stays shared
    signal.signal(signal.SIGCHLD, lambda *_: _reap(directory))
    launcher = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        # Reaped only when the harness knows its pid, and so the name of the file.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            _become(request, launcher)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _build_once() -> None:
    """Build an application that is never run: what FastAPI and pydantic import and keep for it, each fork then has."""
    settings = importlib.import_module("fencepost.server.settings").Settings
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:  # each request brings its own
        del os.environ[name]
    importlib.import_module("fencepost.server.serve").create_app(settings(database_url="postgresql://127.0.0.1/none"))


def _reap(directory: Path) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            unfinished = directory / f"{ended[0]}.unfinished"
            unfinished.write_text(str(os.waitstatus_to_exitcode(ended[1])))
            unfinished.rename(directory / str(ended[0]))


def _become(request: Mapping[str, Any], launcher: int) -> None:
    """Be the command from here on; never return."""
    code = 1
    try:
        os.setsid()
        die_with_parent(launcher, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        for number, file in enumerate((os.devnull, request["output"], request["errors"])):
            opened = os.open(file, flags if number else os.O_RDONLY, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["fencepost", *request["arguments"]]
        importlib.import_module("fencepost.cli.main").main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at the end of a program
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve_requests(Path(sys.argv[1]))
