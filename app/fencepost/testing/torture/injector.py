"""Brings faults about, one after the other, and records when each began and when it was over."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, TypeVar

import asyncpg

from fencepost.testing.faults.network import cut, delayed, partitioned
from fencepost.testing.faults.processes import killed, paused
from fencepost.testing.history import Recorder
from fencepost.testing.torture.crew import Crew, Worker
from fencepost.testing.torture.holders.database import DATABASE_ERRORS
from fencepost.testing.torture.merging import Voided
from fencepost.testing.torture.schedule import Planned
from fencepost.testing.torture.stages.stage import Primary, Stage, StageGateway

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
    """Knows what there is to break."""

    def __init__(self, stage: Stage, crew: Crew, recorder: Recorder, prefix: str) -> None:
        self._stage, self._crew, self._recorder, self._prefix = stage, crew, recorder, prefix
        self.injected: set[str] = set()
        """The kinds of faults that have begun."""
        self.over: set[str] = set()
        """Those of which one has lasted as long as it was to."""
        self.voided: list[Voided] = []
        """What each failover has done to tokens."""

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
    def _pause_holder(self, holder: Worker) -> Iterator[None]:
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

    def _primary(self) -> Primary:
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
