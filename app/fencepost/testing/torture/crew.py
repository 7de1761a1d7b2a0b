"""The worker processes of a run: started, replaced when they were killed, and asked to end."""

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.testing.servers.processes import kill_tree
from fencepost.testing.torture.assignment import Assignment, RunFailedError

_ENDS_WITHIN: Final = 60.0
"""Seconds. Operations that have begun are ended first, and each may wait for its answer for some."""


class CrewWorker:
    """One worker process."""

    def __init__(self, command: Sequence[str], assignment: Assignment, log: Path) -> None:
        self.assignment, self._log = assignment, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                # SIGKILL: it may be stopped when we end.
                preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGKILL),  # noqa: PLW1509
            )
        assert self._process.stdin is not None  # noqa: S101 - for the type
        self._process.stdin.write(assignment.to_json())
        self._process.stdin.flush()

    @property
    def name(self) -> str:
        """How its operations call it, before the number of the task."""
        return f"w{self.assignment.index}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        kill_tree(self.pid)
        self._process.wait()
        self.ask_to_end()

    def check(self) -> None:
        """Raise RunFailedError if it has ended by itself."""
        if self._process.poll() is not None:
            raise RunFailedError(f"worker {self.name} has ended by itself: {self._complaint()}")

    def ended(self) -> None:
        """Wait for its end. Raises RunFailedError when it failed; one that takes too long is killed."""
        try:
            code = self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        if code != 0:
            raise RunFailedError(f"worker {self.name} failed: {self._complaint()}")

    def ask_to_end(self) -> None:
        """Let it end its operations and then itself."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def _complaint(self) -> str:
        """Find the last lines of its traceback that say something: those of a group of errors are framed."""
        lines = [line.strip(" |+-") for line in self._log.read_text(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-3:]) or f"exit status {self._process.returncode}"


class Crew:
    """All workers. `command` starts one. `assign` makes the assignment of a worker of this index with so many tasks."""

    def __init__(self, command: Sequence[str], assign: Callable[[int, int], Assignment], logs: Path) -> None:
        self._command, self._assign, self._logs = command, assign, logs
        self._started = 0
        self.parts: list[Path] = []
        self.loaders: list[CrewWorker] = []
        self.holders: list[CrewWorker] = []

    def start(self, *, loaders: int, tasks: int, holders: int) -> None:
        """Start all. A holder has two tasks: few enough that its pause stops few others."""
        self.loaders += [self._start(tasks) for _ in range(loaders)]
        self.holders += [self._start(2) for _ in range(holders)]

    @contextmanager
    def killed(self, holder: CrewWorker) -> Iterator[None]:
        """SIGKILL a holder; another one takes its place after the block."""
        place = self.holders.index(holder)
        self.holders.remove(holder)
        holder.kill()
        yield
        self.holders.insert(place, self._start(2))

    def check(self) -> None:
        for worker in (*self.loaders, *self.holders):
            worker.check()

    def end(self) -> None:
        workers = (*self.loaders, *self.holders)
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.ended()

    def kill(self) -> None:
        for worker in (*self.loaders, *self.holders):
            worker.kill()

    def _start(self, tasks: int) -> CrewWorker:
        assignment = self._assign(self._started, tasks)
        self._started += 1
        self.parts.append(Path(assignment.part))
        return CrewWorker(self._command, assignment, self._logs / f"worker{assignment.index}.log")
