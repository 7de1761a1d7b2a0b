"""Bounds on connections, and on how requests arrive: how many there are, and how long a request may take to come.

A connection says how it stands (`Guarded`), and the guard looks at all of them once a second: a timer for each request
would cost more. Where there are too many connections, the oldest that has no whole request gives way to the new one;
so clients that send halves of requests do not keep others out.

What connections keep, because their clients do not take it, has a bound (`ConnectionBounds.kept`), and one caller has
three quarters of it. Where it is more, the caller that has the most of it gives way: of its connections the one whose
client takes it slowest is cut off. Were the new answer refused instead, a few who take a kilobyte a second would keep
all others out for hours; and the answer to a write that has landed cannot be exchanged for a refusal.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from starlette.types import Scope

from fencepost.server.fence.problem_types import INVALID_CREDENTIAL, REQUEST_TOO_SLOW, TOO_MANY_CONNECTIONS
from fencepost.server.fence.problems import Problem
from fencepost.server.http.problems import RequestError
from fencepost.server.identity.authenticator import Standing
from fencepost.server.observe.events import Emit, RequestTurnedAway
from fencepost.server.postgres.pool import most_of
from fencepost.server.times import EdgeTimes

GUARD: Final = "fencepost.guard"
"""Under which name the application's lifespan gives its Guard to the server's connections."""
ARRIVAL: Final = "fencepost.arrival"
"""A key of the scope. Its value is a function, set by the server's protocol, that gives the Arrival of the request."""
ADMIN_GUARD: Final = "fencepost.admin_guard"
"""Under which name it gives (port, Guard) of the admin port to the server's connections."""
KEPT_ANSWERS: Final = 8
"""So many of the largest answers, which are not taken, have room in a process; six of them may be one caller's, who may
have as many reads at once."""
_LITTLE: Final = 65_536
"""Bytes that a connection may keep before anyone counts them: uvicorn and the event loop have the same bound."""
MOST_ENDING: Final = 128
"""Most connections that were refused, do not count any more, and stay for a moment so that the client reads why."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """What an operator chooses (settings.py has the same defaults): per worker; bytes, seconds, and bytes a second."""

    connections: int = 4096
    connections_per_address: int = 1024
    head_bytes: int = 65_536
    head_within: float = 10.0
    body_within: float = 60.0
    least_rate: float = 1024.0
    kept: int = KEPT_ANSWERS * 67_108_864

    @property
    def of_admin_port(self) -> "ConnectionBounds":
        """Give those of the admin port: clients of the main port that have all of theirs keep no operator out."""
        return replace(self, connections=64, connections_per_address=64)


@dataclass(slots=True)
class Arrival:
    """What arrives at a connection: since when (the event loop's clock), how many bytes of it, and whether its head is
    there. `since` None: nothing arrives.
    """

    since: float | None = None
    bytes: int = 0
    in_body: bool = False
    by_lines: bool = False
    """Whether each line of the body has the time that a body has: who reads it sets `since` with each line."""
    held: bool = False
    """Whether who reads it by lines does not do so now."""
    kept: int = 0
    """Bytes of the answer that are made and wait for those before them: the verdicts of a batch."""
    noted: Callable[[], None] = lambda: None
    """Called when these have become a large part more."""


class Guarded(Protocol):
    """A connection."""

    arrival: Arrival

    @property
    def gives_way(self) -> bool:
        """Whether no whole request of it is under way, and no answer."""
        ...

    @property
    def held_up(self) -> bool:
        """Whether the gateway itself does not read what arrives, for now."""
        ...

    @property
    def unsent(self) -> int:
        """How many bytes of answers the client has not taken yet."""
        ...

    @property
    def kept(self) -> int:
        """How many bytes it keeps: of answers, and of requests behind them."""
        ...

    @property
    def caller(self) -> str: ...

    def refuse(self, problem: Problem) -> None:
        """Answer what arrives with this, and close the connection; where it gave way, it does not count any more."""
        ...

    def abort(self) -> None:
        """Cut the connection off. What the client has not taken is lost."""
        ...


@dataclass
class Guard:
    """All connections of this process."""

    bounds: ConnectionBounds
    emit: Emit
    times: EdgeTimes = field(default_factory=EdgeTimes)
    for_page: Callable[[bytes | None], dict[str, str]] = lambda _origin: {}
    """Gives the headers by which a page of this origin may read what is refused."""
    _connections: dict[str, dict[Guarded, None]] = field(default_factory=dict)
    """By the peer's address, the oldest first."""
    _count: int = 0
    _ending: set[Guarded] = field(default_factory=set)
    _unsent: dict[Guarded, tuple[float, int]] = field(default_factory=dict)
    """Connections with answers that are not taken: since when they are watched, and how much it was then."""
    _keeping: dict[Guarded, tuple[str, float, int]] = field(default_factory=dict)
    """Connections that keep more than a little: the address, since when, and how much it was then."""
    _looks: asyncio.TimerHandle | None = None

    def opened(self, connection: Guarded, address: str, loop: asyncio.AbstractEventLoop) -> Problem | None:
        """Note a connection; where there are too many, another gives way, or the problem is returned."""
        theirs = self._connections.get(address, {})
        problem: Problem | None = None
        if len(theirs) >= self.bounds.connections_per_address:
            problem = self._make_room(theirs, f"{address} has {len(theirs)} connections")
        elif self._count >= self.bounds.connections:
            # Of the address that has the most: others have done nothing.
            those = max(self._connections.values(), key=len)
            problem = self._make_room(those, f"there are {self._count} connections")
        if problem is not None:
            return problem
        self._connections.setdefault(address, {})[connection] = None
        self._count += 1
        if self._looks is None:
            self._looks = loop.call_later(self.times.look_every, self._look, loop)
        return None

    def ends(self, connection: Guarded, address: str) -> bool:
        """Count a connection no more, for it is ended; False: at once, for too many are being ended."""
        self.closed(connection, address)
        if len(self._ending) >= MOST_ENDING:
            return False
        self._ending.add(connection)
        return True

    def closed(self, connection: Guarded, address: str) -> None:
        self._ending.discard(connection)
        self._unsent.pop(connection, None)
        self._keeping.pop(connection, None)
        theirs = self._connections.get(address)
        if theirs is None or connection not in theirs:
            return
        del theirs[connection]
        self._count -= 1
        if not theirs:
            del self._connections[address]

    def reads_on(self, connection: Guarded) -> None:
        """Note that a client has taken most of what it had not taken."""
        self._unsent.pop(connection, None)
        if connection.kept <= _LITTLE:
            self._keeping.pop(connection, None)

    def keeps(self, connection: Guarded, address: str) -> None:
        """Note how much a connection keeps; if it is too much for its caller now, or for the process, cut some off."""
        now, bound = asyncio.get_running_loop().time(), self.bounds.kept
        self._keeping[connection] = address, now, connection.kept
        total = sum(each.kept for each in self._keeping)
        while total > most_of(bound):
            of: Counter[str] = Counter()
            for each in self._keeping:
                of[each.caller] += each.kept
            caller, most = of.most_common(1)[0]
            if total <= bound and most <= most_of(bound):
                return
            slowest = min(
                (each for each in self._keeping if each.caller == caller), key=lambda each: self._pace(each, now)
            )
            why = (
                f"{caller} has not taken {most} bytes of answers, all have not taken {total}: the slowest was cut off."
            )
            self.refused(Problem(REQUEST_TOO_SLOW, why), self._keeping.pop(slowest)[0])
            total -= slowest.kept
            slowest.abort()

    def _pace(self, connection: Guarded, now: float) -> float:
        """Give how many bytes a second a client has taken. Of one that has just begun nobody knows it."""
        _, since, before = self._keeping[connection]
        return (before - connection.kept) / (now - since) if now > since else math.inf

    def refused(self, problem: Problem, address: str) -> None:
        """Have a refusal counted and logged."""
        self.emit(RequestTurnedAway(address, problem.name, problem.detail))

    def _make_room(self, connections: dict[Guarded, None], why: str) -> Problem | None:
        oldest = next((each for each in connections if each.gives_way), None)
        if oldest is None:
            return Problem(TOO_MANY_CONNECTIONS, f"{why}, and each has a request under way.")
        gave_way = f"{why}: this one had no whole request, and gave way to another."
        oldest.refuse(Problem(REQUEST_TOO_SLOW, gave_way, retry_after=1))
        return None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for address, connections in list(self._connections.items()):
            for each in list(connections):
                since = each.arrival.since
                if since is not None and (problem := _too_slow(each, now, now - since, self.bounds)) is not None:
                    each.refuse(problem)
                if each.unsent or each in self._unsent:
                    self._look_at_unsent(each, address, now)
        self._looks = loop.call_later(self.times.look_every, self._look, loop) if self._connections else None

    def _look_at_unsent(self, connection: Guarded, address: str, now: float) -> None:
        """Cut a connection off whose client takes its answers too slowly, or not at all."""
        unsent, within = connection.unsent, self.bounds.body_within
        if not unsent:
            self._unsent.pop(connection, None)
            return
        since, before = self._unsent.setdefault(connection, (now, unsent))
        if now - since <= within:
            return
        if 0 <= before - unsent < within * self.bounds.least_rate:
            late = f"In {within:.0f} seconds {before - unsent} of {before} bytes of the answer were taken."
            self.refused(Problem(REQUEST_TOO_SLOW, late), address)
            connection.abort()
        else:  # it goes on, or there is more to take: its time begins anew
            self._unsent[connection] = now, unsent


def _too_slow(connection: Guarded, now: float, took: float, bounds: ConnectionBounds) -> Problem | None:
    """Say that what arrives takes too long, if it does so: it has taken `took` seconds until now."""
    arrival, late = connection.arrival, None
    if connection.held_up:  # then it is not the client who is slow: its time begins anew
        arrival.since, arrival.bytes = now, 0
    elif not arrival.in_body:
        if took > bounds.head_within:
            late = f"After {bounds.head_within:.0f} seconds the request's head was not there."
    elif took > bounds.body_within:
        what = "a whole line of the request's body" if arrival.by_lines else "the request's body"
        late = f"After {bounds.body_within:.0f} seconds {what} was not there."
    elif not arrival.by_lines and took > bounds.head_within and arrival.bytes < took * bounds.least_rate:
        late = f"In {took:.0f} seconds {arrival.bytes} bytes of the request's body came."
    return Problem(REQUEST_TOO_SLOW, late, retry_after=1) if late is not None else None


# Whether the client of a request is still there, and is still to be answered: who waits for long asks this, and nobody
# else watches clients or credentials for it.

T = TypeVar("T")

WATCH: Final = "fencepost.watch"
"""A key of the scope. Its value is a function, set by the server's protocol (serving/protocol.py)."""
STANDING: Final = "fencepost.standing"
"""A key of the scope, where there is authentication: the Standing of the caller's credential."""


def hung_up(scope: Scope) -> "asyncio.Future[None]":
    """Give what is done once the client has closed the connection, or its half of it: it waits for nothing more. The
    future is the connection's: it is not to be cancelled. Under another server it is never done.
    """
    watch = scope.get(WATCH)
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future() if watch is None else watch()
    return found


@asynccontextmanager
async def leaving(scope: Scope) -> AsyncIterator["asyncio.Future[None]"]:
    """Give what is done once nobody is to be answered any more: the client has hung up, or its credential is good no
    longer, although its time is not over. It is not to be cancelled. A fault of our own in finding that out ends it,
    too, and is raised at the end: it says nothing of the credential.
    """
    standing: Standing | None = scope.get(STANDING)
    if standing is None:
        yield hung_up(scope)
        return
    gone = asyncio.create_task(_gone(scope, standing))
    try:
        yield gone
        if gone.done():
            gone.result()
    finally:
        gone.cancel()


async def unless(gone: "asyncio.Future[None]", waiting: Coroutine[Any, Any, T]) -> T | None:
    """Wait for something, but not for longer than someone is to be answered; None: there is nobody."""
    waits = asyncio.create_task(waiting)
    try:
        await asyncio.wait((waits, gone), return_when=asyncio.FIRST_COMPLETED)
        return waits.result() if waits.done() else None
    finally:
        waits.cancel()


def refuse_if_over(scope: Scope, gone: "asyncio.Future[None]", report: Callable[[Problem], None]) -> None:
    """Raise RequestError, and report it, where the client waits still and its credential is good no longer."""
    if gone.done() and gone.exception() is None and not hung_up(scope).done():
        detail = "The token or key was revoked, or has lost rights, while the request waited."
        report(refused := Problem(INVALID_CREDENTIAL, detail))
        raise RequestError(refused)


def may_ask_again(scope: Scope) -> bool:
    """Whether the caller may come again, with another credential if need be: its key was not revoked meanwhile."""
    standing: Standing | None = scope.get(STANDING)
    return standing is None or not standing.is_over_for_good


async def _gone(scope: Scope, standing: Standing) -> None:
    over = asyncio.create_task(standing.over())
    try:
        await asyncio.wait((hung_up(scope), over), return_when=asyncio.FIRST_COMPLETED)
        if over.cancelled():
            raise RuntimeError("looking at the credential again was cancelled")
        if over.done():
            over.result()
    finally:
        over.cancel()
