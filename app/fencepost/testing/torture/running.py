"""One run, from its servers to its report."""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import asyncpg

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.testing.checker import NothingToCheckError, UndecidedError, Verdict, check
from fencepost.testing.faults.network import cut, delayed, partitioned
from fencepost.testing.faults.processes import killed, paused
from fencepost.testing.history import BadHistoryError, Recorder, read
from fencepost.testing.servers.processes import kill_tree, server_directory
from fencepost.testing.torture.assignment import (
    BUILTIN,
    Assignment,
    BadInputError,
    Counts,
    Fenced,
    Lapses,
    RunFailedError,
    Tally,
)
from fencepost.testing.torture.config import HISTORY, REPORT, SOURCES, UNJUDGED, Config
from fencepost.testing.torture.faults import KINDS, Interruption, Planned, heeding_interrupts, schedule
from fencepost.testing.torture.holders import DATABASE_ERRORS, run_token
from fencepost.testing.torture.merging import Merged, Voided, merge, read_all, written
from fencepost.testing.torture.report import write_report
from fencepost.testing.torture.report.report import COMMAND, ENDED, MISSED
from fencepost.testing.torture.stages import OwnPrimary, Stage, StageGateway, foreign_stage, own_stage
from fencepost.testing.torture.workloads import WORKLOADS, Workload


def listing() -> str:
    """Describe all workloads, faults and sources, one a line."""
    lines = ["Workloads:"]
    lines += [f"  {workload.name:20} {workload.what}" for workload in WORKLOADS.values()]
    lines += ["", "Faults:"]
    lines += [f"  {kind.name:20} {kind.what}" for kind in KINDS.values()]
    lines += ["", f"Sources: {', '.join(SOURCES)}"]
    return "\n".join(lines)


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
    """All worker processes of a run.

    `command` starts one. `assign` makes the assignment of the worker of this index with so many tasks.
    """

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


T = TypeVar("T")
Hold = Callable[[float], object]
"""Lets the run go on for so many seconds."""

_DELAY: Final = 0.05  # seconds
_CUT_AT_ONCE: Final = 3
"""Connections that one fault cuts."""
_BYTES: Final = 4000
"""A cut in the middle comes after up to so many bytes."""

# Only leases of this run, whose locks have names that begin with its prefix.
_EXPIRE: Final = """
UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'
 WHERE ended_at IS NULL AND starts_with(names[1], $1) AND starts_with(owner, $2)
"""
_STEP: Final = """
UPDATE fencepost.leases SET granted_at = granted_at + $2 * interval '1 s', expires_at = expires_at + $2 * interval '1 s'
 WHERE ended_at IS NULL AND starts_with(names[1], $1)
"""
_STEPS: Final = (-60.0, -1.0, -0.1, 0.1, 1.0, 60.0)
"""Seconds."""


class _NotDoneError(Exception):
    """A fault could not be brought about."""


class Injector:
    """Brings faults about, one after the other, and records when each began and when it was over."""

    def __init__(self, stage: Stage, crew: Crew, recorder: Recorder, prefix: str) -> None:
        self._stage, self._crew, self._recorder, self._prefix = stage, crew, recorder, prefix
        self.injected: set[str] = set()
        self.over: set[str] = set()
        """Those of which one has lasted as long as it was to."""
        self.voided: list[Voided] = []

    def inject(self, planned: Planned, hold: Hold) -> None:
        """Begin a fault, let the run go on for as long as it lasts, and end it.

        One that is done in the database, and cannot reach it just now, does not count as one.
        """
        try:
            target, fault = self._fault(planned)
        except _NotDoneError:
            return
        self.injected.add(planned.kind.name)
        recorded = self._recorder.fault(planned.kind.name, target)
        try:
            with fault:
                hold(planned.lasts)
        finally:
            recorded.healed()
        self.over.add(planned.kind.name)

    def _fault(self, planned: Planned) -> tuple[str, AbstractContextManager[object]]:
        match planned.kind.name:
            case "pause-holder":
                holder = self._choose(self._crew.holders, planned)
                return holder.name, self._pause_holder(holder)
            case "kill-holder":
                holder = self._choose(self._crew.holders, planned)
                return holder.name, self._crew.killed(holder)
            case "expire-leases":
                holder = self._choose(self._crew.holders, planned)
                return holder.name, self._in_database(_EXPIRE, f"{holder.name}.")
            case "step-clock":
                seconds = _STEPS[planned.among(len(_STEPS))]
                return f"database by {seconds:+g} s", self._in_database(_STEP, -seconds)
            case "restart-fast" | "restart-immediate":
                return "PostgreSQL", self._restart(crash=planned.kind.name == "restart-immediate")
            case "failover":
                return "PostgreSQL", self._fail_over()
            case "pause-lock-service":
                server = self._choose(self._stage.lock_service, planned)
                return "lock service", paused(server)
            case "kill-lock-service":
                server = self._choose(self._stage.lock_service, planned)
                return "lock service", killed(server)
        gateway = self._choose(self._stage.gateways, planned)
        return gateway.name, self._gateway_fault(planned, gateway)

    @staticmethod
    def _gateway_fault(planned: Planned, gateway: StageGateway) -> AbstractContextManager[object]:
        faults: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "pause-gateway": lambda: paused(gateway.server),
            "kill-gateway": lambda: killed(gateway.server),
            "partition-client": lambda: partitioned(gateway.front),
            "partition-database": lambda: partitioned(gateway.back),
            "cut-client": lambda: cut(gateway.front, "after-commit", times=_CUT_AT_ONCE),
            "delay-client": lambda: delayed(gateway.front, _DELAY),
            "delay-database": lambda: delayed(gateway.back, _DELAY),
            "cut-before-commit": lambda: cut(gateway.back, "before-commit", times=_CUT_AT_ONCE),
            "cut-after-commit": lambda: cut(gateway.back, "after-commit", times=_CUT_AT_ONCE),
            "cut-after-bytes": lambda: cut(
                gateway.back, "after-bytes", times=_CUT_AT_ONCE, bytes_to_server=planned.among(_BYTES)
            ),
        }
        return faults[planned.kind.name]()

    @staticmethod
    def _choose(targets: list[T], planned: Planned) -> T:
        return targets[planned.among(len(targets))]

    @contextmanager
    def _pause_holder(self, holder: CrewWorker) -> Iterator[None]:
        """Stop it, and let the leases that it holds be over when it wakes up."""
        with paused(holder):
            if "builtin" in self._stage.has:
                with suppress(_NotDoneError):
                    self._execute(_EXPIRE, f"{holder.name}.")
            yield

    def _in_database(self, statement: str, argument: object) -> AbstractContextManager[object]:
        self._execute(statement, argument)
        return nullcontext()

    @contextmanager
    def _restart(self, *, crash: bool) -> Iterator[None]:
        self._primary().restart(crash=crash)
        yield

    @contextmanager
    def _fail_over(self) -> Iterator[None]:
        began = time.monotonic_ns()
        host, port = self._primary().fail_over()
        self.voided.append(Voided(began, self._primary().oldest(self._stage.source)))
        self._recorder.note(f"tokens below {self.voided[-1].below} are void since the failover")
        ways = [gateway.back for gateway in self._stage.gateways]
        for way in (*ways, *filter(None, [self._stage.to_database])):
            way.lead_to(host, port)
        yield

    def _primary(self) -> OwnPrimary:
        assert self._stage.primary is not None  # noqa: S101 - for the type: the kind needs it
        return self._stage.primary

    def _execute(self, statement: str, argument: object) -> None:
        """Run it. Raises _NotDoneError, with a note in the history, if the database cannot be reached just now."""
        url = self._stage.database_url
        assert url is not None  # noqa: S101 - for the type: the kind needs it

        async def execute() -> None:
            connection = await asyncpg.connect(url, timeout=5)
            try:
                await connection.execute(statement, self._prefix, argument, timeout=5)
            finally:
                await connection.close()

        try:
            asyncio.run(execute())
        except DATABASE_ERRORS as error:
            self._recorder.note(f"the leases could not be moved: {error}")
            raise _NotDoneError from error


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
    """The workload and the faults of one run, while its servers are there. Files go to `workshop`."""

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


def run(config: Config, progress: Progress = silent) -> Verdict:
    """Run, check, and write history and report to `config.out`. See `run_in_words`."""
    return run_in_words(config, progress)[0]


def first_step(config: Config) -> str:
    """Say what is done before the workload begins: of a gateway that runs already no server is started."""
    return "starting servers" if config.url is None else "making tables"


def run_in_words(config: Config, progress: Progress = silent) -> tuple[Verdict, str]:
    """Do so, and give the report's short form for a terminal as well. Call it in the main thread.

    Ctrl-C (and SIGTERM) ends the workload early; what ran is checked and reported. A second one raises
    KeyboardInterrupt. Raises BadInputError and RunFailedError. Files are written whole or not at all; the history of a
    run that cannot be judged is `unjudged.jsonl` in `config.out`.
    """
    with heeding_interrupts() as interruption, workshop_for(config.out) as workshop:
        header = _header(config)
        files, outcome, voided = _play(config, workshop, interruption, progress)
        whole = workshop / HISTORY
        progress("merging", 1.0, None)
        merged = merge(files, whole, header | outcome, voided)
        progress("checking", 1.0, None)
        try:
            verdict = judge(whole)
            if verdict.valid:
                require_shown(config.play, merged)
        except RunFailedError as error:
            kept = keep(whole, config.out)
            raise RunFailedError(f"{error}. The history of the run is kept: {kept}") from error
        progress("reporting", 1.0, None)
        words = write_report(whole, verdict, workshop / REPORT) + of_the_control(config.play, verdict)
        _publish(workshop, config.out)
    return verdict, words


def judge(history: Path) -> Verdict:
    """Check the history of a run. Raises RunFailedError when it has nothing to check, or cannot be judged."""
    try:
        return check(read(history))
    except (BadHistoryError, NothingToCheckError, UndecidedError) as error:
        raise RunFailedError(f"the run cannot be judged: {error}") from error


def keep(history: Path, out: Path) -> Path:
    """Put the history of a run that cannot be judged where it is found."""
    out.mkdir(parents=True, exist_ok=True)
    return history.replace(out / UNJUDGED)


def of_the_control(workload: Workload, verdict: Verdict) -> str:
    """Say what a verdict on the control means, for a terminal; nothing for other workloads."""
    if not workload.loses:
        return ""
    if verdict.valid:
        return (
            "\n\nThis is the control, and has lost nothing: the run is too short or too mild to show what a fence does."
        )
    return "\n\nThis is the control, which has no fence: to lose something, or to do it twice, is what it has to show."


def _play(
    config: Config, workshop: Path, interruption: Interruption, progress: Progress
) -> tuple[list[Path], dict[str, str], list[Voided]]:
    """Run the workload; returns the parts of the history, what its header says of the run's end, and void tokens."""
    prefix = f"torture_{secrets.token_hex(4)}"
    made = [Fenced(prefix, kind) for kind in config.play.tables]
    open_stage = own_stage if config.url is None else foreign_stage
    with server_directory() as servers:
        progress(first_step(config), 0.0, None)
        with open_stage(config, servers, prefix, made) as stage:
            play = Play(config, stage, workshop, prefix, interruption, progress)
            return play.play(), play.outcome, play.voided


def require_shown(workload: Workload, merged: Merged) -> None:
    """Raise RunFailedError if nothing that the workload is about was accepted: nothing can be wrong with that."""
    ops = workload.promised
    if any(merged.accepted[op] for op in ops):
        return
    refused = [f"{count} as {reason}" for (op, reason), count in merged.refused.most_common() if op in ops]
    raise RunFailedError(
        f"the run cannot be judged: no {' and no '.join(sorted(ops))} was accepted ({', '.join(refused) or 'none'}"
        " refused), so it shows nothing. Was it ended too early, or may the gateway not write?"
    )


def _header(config: Config) -> dict[str, object]:
    return {
        "seed": config.seed,
        "workload": config.workload,
        "source": config.source,
        "started": datetime.now(tz=UTC).isoformat(timespec="seconds"),  # noqa: TID251 - for people who read the report
        "faults": config.faults,
        COMMAND: config.command,
        "gateway": config.url or f"{config.gateways} of this run",
    }


@contextmanager
def workshop_for(out: Path) -> Iterator[Path]:
    """Give a directory for files that are not whole yet, on the file system of `out`; it is gone afterwards.

    It is in `out`, which may be a mount of its own, or else in what there is of the way to it. Raises BadInputError.
    """
    place = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    try:
        workshop = Path(tempfile.mkdtemp(prefix=".torture-", dir=place))
    except OSError as error:
        raise BadInputError(f"nothing can be written to {out}, the directory of --out: {error}.") from error
    try:
        yield workshop
    finally:
        shutil.rmtree(workshop)


def _publish(workshop: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in (HISTORY, REPORT):
        (workshop / name).replace(out / name)
