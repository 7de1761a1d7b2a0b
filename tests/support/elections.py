"""Candidates as processes, and the history of what their database accepted."""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.interleave import connection_to
from tests.support.violations import promised

from fencepost.server.ops import demo
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE, eventually

WITHIN = 2 * PATIENCE  # seconds

# The trigger sees writes in the order in which they are accepted: each waits for the row of the one before.
_HISTORY = """
CREATE TABLE public.history (n bigserial PRIMARY KEY, mark bigint NOT NULL, term bigint NOT NULL);
CREATE FUNCTION public.record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.history (mark, term) VALUES (NEW.last_fence_token, NEW.note::bigint);
  RETURN NULL;
END $$;
CREATE TRIGGER record AFTER UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.record()"""


@dataclass(frozen=True)
class Accepted:
    """A write that the database took: its token, and the term that the writer gave."""

    mark: int
    term: int


class Candidate:
    """A process that leads whenever it can (election_leader.py)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def printed(self, what: str, where: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Return the first line of this kind that it prints, or has printed."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.lines if what in each and where(each)]

        async with self._news:
            await asyncio.wait_for(self._news.wait_for(found), WITHIN)
        return found()[0]

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            async with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()


class Contest:
    """One election for the row orders/order-123, on one database."""

    def __init__(self, dsn: str, source: str, ttl: float, stack: AsyncExitStack) -> None:
        self._dsn, self._source, self._ttl, self._stack = dsn, source, ttl, stack

    async def candidate(self, url: str, owner: str) -> Candidate:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable, "-m", "tests.support.election_leader", url, "scheduler", self._source, owner,
                str(self._ttl),
            ),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        candidate = Candidate(process)
        self._stack.push_async_callback(candidate.kill)
        return candidate

    async def history(self) -> list[Accepted]:
        """Return what was accepted, in order."""
        async with connection_to(self._dsn) as connection:
            return [
                Accepted(*row) for row in await connection.fetch("SELECT mark, term FROM public.history ORDER BY n")
            ]

    async def goes_on(self) -> None:
        """Return once another write was accepted, whichever leads."""
        so_far = len(await self.history())

        async def more() -> bool:
            return len(await self.history()) > so_far

        await eventually(more, within=WITHIN, what="another accepted write")

    async def check(self, *terms: int) -> None:
        """Neither tokens nor terms ever fall; and these terms, whose writes were acknowledged, have written."""
        history = await self.history()
        for before, after in itertools.pairwise(history):
            kept = before.mark < after.mark and before.term <= after.term
            promised(kept, f"{after} was accepted after {before}")
        promised({*terms} <= {write.term for write in history}, f"of {terms} one has written nothing: {history}")


@asynccontextmanager
async def contest(dsn: str, source: str = "builtin", ttl: float = 6) -> AsyncIterator[Contest]:
    """Set the database up, and end all candidates afterwards."""
    await demo.load(dsn)
    async with connection_to(dsn) as connection:
        await connection.execute(_HISTORY)
        await protect(connection, "orders", source=source)
    async with AsyncExitStack() as stack:
        yield Contest(dsn, source, ttl, stack)
