"""Leader election over any lock service: who leads, and watching that."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fencepost.server.fence.caller import UNKNOWN
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.leases import LeaseId, LockRow
from fencepost.server.postgres.pool import Quota
from fencepost.server.times import TIMES, Times, wait_until_set

# Who leads: a lock's state, seen as an election.

PREFIX: Final = "election/"
"""What the locks of elections begin with, so that they meet no others."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. Times are the database's, as ISO 8601 texts in UTC; `expires_at` is when the lease ends unless it
    is renewed, `remaining_ms` what was left of it.
    """

    owner: str
    lease_id: LeaseId
    since: str
    expires_at: str
    remaining_ms: int

    @property
    def term(self) -> int:
        """The number of the lease. It is no token: observers could write with one."""
        return self.lease_id.number


@dataclass(frozen=True, slots=True)
class Election:
    """An election as it stands. `candidates`: a JSON array of who waits, as far as PostgreSQL knows."""

    name: str
    source: str
    leader: Leader | None = None
    candidates: str = "[]"

    @property
    def led_by(self) -> LeaseId | None:
        """The leader's lease: another one is another term."""
        return None if self.leader is None else self.leader.lease_id


def lock_of(name: str) -> str:
    """Name the lock of an election."""
    return PREFIX + name


def election_of(source: str, state: LockRow) -> Election | None:
    """See a lock as an election; None: it is not one."""
    name = state.name.removeprefix(PREFIX)
    if name in (state.name, ""):
        return None
    return Election(name, source, _leader(source, state), state.waiters)


def _leader(source: str, state: LockRow) -> Leader | None:
    if state.lease_id is None:
        return None
    members = (state.owner, state.granted_at, state.expires_at, state.remaining_ms)
    owner, since, expires_at, remaining_ms = members
    if owner is None or since is None or expires_at is None or remaining_ms is None:
        raise RuntimeError(f"the lease of {state.name} lacks something: {members}")
    return Leader(owner, LeaseId(source, state.lease_id), since, expires_at, remaining_ms)


# Watching elections: many subscribers, one question for all elections that are watched in this process.
#
# It is asked every half second. NOTIFY would not spare it that: a leader that is killed notifies no one. Who begins to
# watch an election that no one else watches is answered by a question of its own, at once.
# Watching begins with the first subscriber and ends with the last. When it cannot be found out any more who leads an
# election, its subscriptions end. So as long as a subscription goes on, silence means that nothing has changed.
#
# A subscriber that is slow, or came late, gets the present state, and not the terms that began and ended in between.

RETRY_AFTER: Final = 1

Key: TypeAlias = tuple[str, str]
"""An election: its source and its name."""
Look: TypeAlias = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Election | Problem]]]
"""Asks how elections stand; the answer has each of them."""


@dataclass(eq=False)
class _Watch:
    """One election that is watched."""

    subscribers: int = 0
    state: Election | Problem | None = None
    version: int = 0
    """Rises when the leader is another one."""
    news: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def notify(self, found: Election | Problem) -> None:
        """Take an answer; it is news if another one leads."""
        before, self.state = self.state, found
        if isinstance(before, Election) and isinstance(found, Election) and before.led_by == found.led_by:
            return
        self.version += 1
        self.news.set_result(None)
        self.news = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        self.news.set_exception(error)
        self.news.exception()  # no one need be there to see it


class Subscription:
    """One who watches; or who would have, and is refused."""

    def __init__(self, watch: _Watch | Problem, stopping: "asyncio.Future[None]") -> None:
        self._watch, self._stopping = watch, stopping
        self._seen = 0

    async def next(self, within: float = math.inf) -> Election | Problem | None:
        """Return how the election stands, at first and whenever another leader, or none, has taken over.

        None: nothing has changed for so many seconds. A Problem ends the subscription: the state cannot be found out.
        """
        watch = self._watch
        if isinstance(watch, Problem):
            return watch
        if watch.version == self._seen:
            limit = None if within == math.inf else within
            await asyncio.wait({watch.news, self._stopping}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping.done():
            return _stopping_problem()
        if watch.version == self._seen:
            if watch.news.done():
                watch.news.result()  # raises what looking failed with
            return None
        self._seen = watch.version
        return watch.state


class Watches:
    """The elections that are watched at this process."""

    def __init__(self, quota: Quota, times: Times = TIMES) -> None:
        self._quota = quota
        self._times, self._clock = times.watches, times.clock
        self._watches: dict[Key, _Watch] = {}
        self._poller: asyncio.Task[None] | None = None
        self._new = asyncio.Event()
        self._stopping: asyncio.Future[None] | None = None  # made in the loop that it belongs to
        self._stopped = False

    @property
    def count(self) -> int:
        return self._quota.count

    @property
    def watched(self) -> int:
        """How many elections are asked about."""
        return len(self._watches)

    @asynccontextmanager
    async def subscribe(self, key: Key, look: Look, caller: str = UNKNOWN) -> AsyncIterator[Subscription]:
        """Watch until the block ends. `look` is called for all that are watched."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        if self._stopped:
            yield Subscription(_stopping_problem(), self._stopping)
            return
        with self._quota.place(caller) as full:
            if full is not None:
                yield Subscription(_too_many(full), self._stopping)
                return
            watch = self._join(key, look)
            try:
                yield Subscription(watch, self._stopping)
            finally:
                self._leave(key, watch)

    def _join(self, key: Key, look: Look) -> _Watch:
        watch = self._watches.get(key)
        if watch is None or isinstance(watch.state, Problem):  # those who have that one end
            watch = self._watches[key] = _Watch()
            self._new.set()
        watch.subscribers += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(look))
        return watch

    def _leave(self, key: Key, watch: _Watch) -> None:
        watch.subscribers -= 1
        if watch.subscribers:
            return
        if self._watches.get(key) is watch:
            del self._watches[key]
        if not self._watches and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self, look: Look) -> None:
        due = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            all_of_them = now >= due
            if all_of_them:
                due = now + self._times.elections_every
            self._new.clear()
            asked = {
                key: watch
                for key, watch in self._watches.items()
                if watch.state is None or (all_of_them and not isinstance(watch.state, Problem))
            }
            if asked:
                await self._ask(look, asked)
            await wait_until_set(self._new, due - self._clock.monotonic(), self._clock)

    async def _ask(self, look: Look, asked: Mapping[Key, _Watch]) -> None:
        found: Mapping[Key, Election | Problem]
        within = self._times.look_within
        try:
            async with asyncio.timeout(within):
                found = await look(list(asked))
        except TimeoutError:
            silent = Problem(
                DATABASE_UNAVAILABLE, f"PostgreSQL did not answer within {within:g} s who leads.", retry_after=1
            )
            found = dict.fromkeys(asked, silent)
        except Exception as error:  # noqa: BLE001 - it is raised to all who watch
            for key, watch in asked.items():
                watch.fail(error)
                if self._watches.get(key) is watch:
                    del self._watches[key]
            return
        for key, watch in asked.items():
            watch.notify(found[key])

    def stop(self) -> None:
        self._stopped = True
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)


def _too_many(full: str) -> Problem:
    detail = f"This gateway opens no more streams of elections: there are {full}."
    return Problem(DATABASE_UNAVAILABLE, detail, retry_after=RETRY_AFTER)


def _stopping_problem() -> Problem:
    return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=RETRY_AFTER)
