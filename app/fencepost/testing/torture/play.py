"""The workload and the faults of one run, while its servers are there."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from fencepost.testing.history import Recorder
from fencepost.testing.torture.assignment import BUILTIN, Assignment, Lapses
from fencepost.testing.torture.config import Config
from fencepost.testing.torture.crew import Crew
from fencepost.testing.torture.errors import RunFailedError
from fencepost.testing.torture.holders.token import run_token
from fencepost.testing.torture.injector import Injector
from fencepost.testing.torture.interruption import Interruption
from fencepost.testing.torture.last_reads import read_all, written
from fencepost.testing.torture.merging import Voided
from fencepost.testing.torture.report.facts import ENDED, MISSED
from fencepost.testing.torture.schedule import schedule
from fencepost.testing.torture.stages.stage import Stage
from fencepost.testing.torture.tally import Counts, Tally
from fencepost.testing.torture.workloads import Workload

Progress = Callable[[str, float, Counts | None], None]
"""Called often, with what happens, how much of the run is over (0 to 1), and what has been counted so far."""

_POLL: Final = 0.05  # seconds
_A_WHILE: Final = 1.0  # seconds
_SECONDS: Final = 60
_ALMOST: Final = 0.99


def silent(_what: str, _share: float, _counts: Counts | None) -> None:
    """Show no progress."""


def require_accepted(counts: Counts) -> None:
    """Raise RunFailedError when no operation was accepted: a verdict on such a run would be one on nothing."""
    if not counts.accepted:
        raise RunFailedError(
            f"no operation of the holders was accepted ({counts.refused} refused, {counts.unknown} unknown,"
            f" {counts.unsent} not sent), so the run shows nothing. If it was ended early, let it run longer; else the"
            " gateway refuses everything"
        )


def require_faults(names: str, injected: Collection[str]) -> None:
    """Raise RunFailedError when faults were asked for by name, and none has come."""
    if injected or not _by_name(names):
        return
    raise RunFailedError(
        f"the run was over before one of its faults came ({names}), so it shows nothing of them: give more --minutes"
    )


def _by_name(faults: str) -> bool:
    return faults.split(",", maxsplit=1)[0].strip() not in {"all", "none"}


def share_of(config: Config, seconds: float, operations: int, over: Collection[str]) -> float:
    """How much of a run is over, from 0 to 1 or more. Where faults were asked for by name, --ops does not end it before
    one of them is over: a quick machine may have done all operations by then. `over`: the faults that are.
    """
    share = seconds / (config.minutes * _SECONDS)
    if config.operations is None:
        return share
    by_operations = operations / config.operations
    if _by_name(config.faults) and not over:
        by_operations = min(by_operations, _ALMOST)
    return max(share, by_operations)


class _OverError(Exception):
    """The run has had its minutes or its operations, or was interrupted: the text says which."""


class Play:
    """One run on its stage. Files go to `workshop`."""

    def __init__(
        self,
        config: Config,
        stage: Stage,
        workshop: Path,
        prefix: str,
        interruption: Interruption,
        progress: Progress,
    ) -> None:
        self._config, self._stage, self._workshop, self._prefix = config, stage, workshop, prefix
        self._interruption, self._progress = interruption, progress
        self._tally = Tally.create(workshop / "tally")
        self._recorder = Recorder(workshop / "main.jsonl")
        self._crew = Crew(config.worker_command, self._assign, workshop)
        self._began = 0.0
        self._injector = Injector(stage, self._crew, self._recorder, prefix)
        self._ending = ""

    def play(self) -> list[Path]:
        """Run workload and faults until the end, read everything once more, and return the parts of the history.

        Raises RunFailedError.
        """
        with self._recorder, contextlib.closing(self._tally):
            self._play()
        return [self._workshop / "main.jsonl", *self._parts()]

    @property
    def outcome(self) -> dict[str, str]:
        """For the header of the history, when the run is over: how it ended, and which kinds of faults never came."""
        missed = [kind for kind in self._stage.faults if kind not in self._injector.injected]
        return {ENDED: self._ending} | ({MISSED: ", ".join(missed)} if missed else {})

    @property
    def voided(self) -> list[Voided]:
        """What the failovers of the run have done to tokens."""
        return self._injector.voided

    def _parts(self) -> list[Path]:
        """Give the parts of the workers. One that was killed before it began has written none."""
        return [part for part in self._crew.parts if part.exists()]

    def _play(self) -> None:
        config = self._config
        self._began = time.monotonic()
        try:
            self._crew.start(loaders=config.loaders, tasks=config.tasks, holders=config.holders)
            try:
                self._inject()
            except _OverError as over:
                self._ending = str(over)
            self._progress("ending", 1.0, self._tally.total())
            self._crew.end()
        except BaseException:
            self._crew.kill()
            raise
        require_accepted(self._tally.total())
        if not self._interruption.asked:
            require_faults(config.faults, self._injector.injected)
        self._read_all()

    def _inject(self) -> None:
        for planned in schedule(self._config.seed, self._stage.faults):
            self._hold(planned.after)
            self._injector.inject(planned, self._hold)
        while True:
            self._hold(_A_WHILE)

    def _hold(self, seconds: float) -> None:
        """Let the run go on for so long. Raises _OverError when it is over, RunFailedError when a worker has ended."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            counts = self._tally.total()
            share = share_of(self._config, now - self._began, counts.operations, self._injector.over)
            if self._interruption.asked:
                raise _OverError("when it was interrupted")
            if share >= 1:
                raise _OverError("as asked, by --minutes or --ops")
            self._crew.check()
            self._progress("running", share, counts)
            if now >= until:
                return
            time.sleep(min(_POLL, until - now))

    def _read_all(self) -> None:
        self._progress("reading once more", 1.0, self._tally.total())
        try:
            named = written(self._parts())
            token = run_token() if self._config.url is not None else None
            asyncio.run(
                read_all(
                    *(self._stage.urls, self._prefix, self._config.play, self._recorder, named),
                    token=token,
                    database_url=self._stage.database_url,
                )
            )
        except TimeoutError as error:
            raise RunFailedError(f"{error}; the run cannot be judged") from error

    def _assign(self, index: int, tasks: int) -> Assignment:
        config, workload = self._config, self._config.play
        return Assignment(
            seed=config.seed,
            index=index,
            tasks=tasks,
            gateways=self._stage.urls,
            workload=config.workload,
            prefix=self._prefix,
            part=str(self._workshop / f"part{index}.jsonl"),
            tally=str(self._workshop / "tally"),
            source=self._stage.source,
            resources=config.resources,
            ttl_ms=config.ttl_ms,
            least_ttl_ms=config.least_ttl_ms,
            lapses=self._lapses(workload),
            database_url=self._stage.database_url,
            authenticated=config.url is not None,
        )

    def _lapses(self, workload: Workload) -> Lapses:
        """Say how often holders lose their leases by themselves: sleeping is the only way that costs time."""
        expires = self._config.source == BUILTIN and self._stage.database_url is not None
        return Lapses(early=0.2 if workload.early else 0.0, expired=0.2 if expires else 0.0, slept=workload.slept)
