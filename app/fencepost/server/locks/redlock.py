"""Redlock: the client that has a lock at a majority of independent Redis servers has it, until it expires there.

The algorithm is the published one (redis.io, "Distributed Locks with Redis"):

1. Ask all nodes at once, each with a small time limit, to set the lock to a unique value with a TTL.
2. The lock is ours if a majority did, and if of the TTL something is left: validity = TTL - elapsed - drift.
3. Otherwise release it at all nodes, also those that refused or did not answer, and try again after a random pause.

It rests on clocks that run equally fast, and its nodes know no number that rises: the order of two grants is not to be
had from them. So tokens are drawn in PostgreSQL, after the majority, and only a token that was drawn within the
validity is ordered as the grants are. What then protects the data is the token, and Redlock is for liveness only.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.server.locks import redis
from fencepost.server.locks.leases import ServiceReleases
from fencepost.server.locks.redis import Pauses, RedisNode, advice, holder, server_info, unique_value
from fencepost.server.locks.source import (
    Capabilities,
    Grant,
    Holder,
    SourceContext,
    SourceError,
    SourceUnavailableError,
    SourceUrl,
    read,
)

LONGEST_PAUSE: Final = 0.2
"""Seconds between a waiter's tries at most; at random, so that rivals who split the nodes do not split them again."""
DRIFT: Final = 0.01
"""Share of the TTL by which clocks may run apart, and DRIFT_MS more for the precision of Redis' expiry."""
DRIFT_MS: Final = 2.0
SHARE: Final = 10
"""The shortest TTL in time limits of one node: asking must not take most of it."""

Ask = Callable[[RedisNode], Awaitable[Any]]


def from_url(url: str, context: SourceContext) -> "RedlockSource":
    """Make the source that a redlock:// URL describes. Raises SourceConfigError."""
    where = read(url, context.name, redis.REDLOCK)
    if len(set(where.hosts)) < len(where.hosts):
        raise where.wrong(f"has a host twice: it takes {redis.LEAST_NODES} or more different hosts")
    return RedlockSource(where)


@dataclass(frozen=True, slots=True)
class Poll:
    """The nodes' answers. `answered`: the answers of those that did; `silent`, `refused`: why the others did not."""

    nodes: int
    answered: Sequence[Any]
    silent: Sequence[SourceUnavailableError]
    refused: Sequence[SourceError]
    elapsed_ms: float

    @property
    def majority(self) -> int:
        return self.nodes // 2 + 1

    def most_cannot(self, about: str) -> SourceError | None:
        """Return the error if fewer than a majority answered."""
        if len(self.answered) >= self.majority:
            return None
        if len(self.refused) > self.nodes - self.majority:
            return self.refused[0]
        why = "; ".join(str(error) for error in (*self.silent, *self.refused))
        return SourceUnavailableError(
            f"only {len(self.answered)} of {self.nodes} Redis servers answered when asked for {about}: {why}"
        )


class RedlockSource:
    """A lock source in several Redis servers that are independent of each other. It has no numbers."""

    def __init__(self, where: SourceUrl) -> None:
        timeout_ms = where[redis.NODE_TIMEOUT_MS]
        self.capabilities = Capabilities(order="database", fair=False, verifies=False, least_ttl_ms=SHARE * timeout_ms)
        self._prefix = where[redis.PREFIX]
        self._nodes = [RedisNode(where, host, timeout_ms / 1000) for host in where.hosts]
        self._pending = ServiceReleases()
        self._pauses = Pauses()

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        await self._pending.drain()
        await asyncio.gather(*(node.close() for node in self._nodes))

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:  # noqa: ARG002 - it has none
        """Take a lock at a majority. Who waits tries again after random pauses."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            attempt = self._try(lock, unique_value(owner), ttl_ms)
            try:
                answer = await self._pending.acquire_or_release(attempt, lambda grant: self.release(lock, grant.handle))
            except SourceUnavailableError:
                # Who waits anyway waits on: the time limits of nodes are short, so one slow moment is nothing.
                if loop.time() >= deadline:
                    raise
            else:
                if isinstance(answer, Grant) or loop.time() >= deadline:
                    return answer
            pause = random.uniform(0, LONGEST_PAUSE)  # noqa: S311 - only spreads rivals
            await self._pauses.pause(lock, max(min(pause, deadline - loop.time()), 0))

    async def _try(self, lock: str, value: str, ttl_ms: int) -> Grant | Holder:
        about = self._about(lock)
        poll = await self._poll(lambda node: node.run(redis.TAKE, (self._key(lock),), value, ttl_ms, about=about))
        taken = sum(answer == 1 for answer in poll.answered)
        if taken >= poll.majority and validity_ms(ttl_ms, poll.elapsed_ms) > 0:
            return Grant(value, ())
        # At all nodes: one that did not answer may have set it. A node that is not reached lets it expire.
        await self._poll(lambda node: node.run(redis.RELEASE, (self._key(lock),), value, about=about))
        if (error := poll.most_cannot(about)) is not None:
            raise error
        if taken >= poll.majority:
            raise _too_late(about, ttl_ms, poll)
        return _most_held([answer for answer in poll.answered if answer != 1])

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        about = self._about(lock)
        poll = await self._poll(lambda node: node.run(redis.EXTEND, (self._key(lock),), handle, ttl_ms, about=about))
        extended = sum(answer == 1 for answer in poll.answered)
        if extended >= poll.majority:
            if validity_ms(ttl_ms, poll.elapsed_ms) > 0:
                return True
            raise _too_late(about, ttl_ms, poll)
        if poll.nodes - (len(poll.answered) - extended) >= poll.majority:
            # Those that did not answer would make a majority of it: it is not known.
            raise poll.most_cannot(about) or _undecided(about, poll)
        # It is lost. What a minority still keeps would be in the next owner's way.
        await self._poll(lambda node: node.run(redis.RELEASE, (self._key(lock),), handle, about=about))
        return False

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:  # noqa: ARG002 - it has none
        """Return whether the hold is there: an empty tuple, or None. Numbers are drawn in PostgreSQL."""
        about = self._about(lock)
        poll = await self._poll(lambda node: node.run(redis.LOOK, (self._key(lock),), about=about))
        ours = sum(answer is not None and answer[0] == handle.encode() for answer in poll.answered)
        if ours >= poll.majority:
            return ()
        if poll.nodes - (len(poll.answered) - ours) >= poll.majority:
            raise poll.most_cannot(about) or _undecided(about, poll)
        return None

    async def release(self, lock: str, handle: str) -> None:
        """Delete the lock at all nodes. Raises SourceUnavailableError when fewer than a majority answered."""
        about = self._about(lock)
        poll = await self._poll(lambda node: node.run(redis.RELEASE, (self._key(lock),), handle, about=about))
        self._pauses.end(lock)
        if (error := poll.most_cannot(about)) is not None:
            raise error

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock at a majority, or may have it, as far as nodes answer."""
        about = self._about(lock)
        poll = await self._poll(lambda node: node.run(redis.LOOK, (self._key(lock),), about=about))
        if (error := poll.most_cannot(about)) is not None:
            raise error
        held = [answer for answer in poll.answered if answer is not None]
        most = max(Counter(value for value, _ in held).values(), default=0)
        may_have = most > 0 and most + poll.nodes - len(poll.answered) >= poll.majority
        return _most_held(held) if may_have else None

    async def issued(self, number: int) -> bool:
        """Not to be asked: nodes have no numbers."""
        raise SourceError(f"Redlock has no numbers, so it is not known whether {number} was handed out")

    async def advice(self) -> list[str]:
        """Each node's own (`advice` of redis.py), and whether they are several servers at all."""
        poll = await self._poll(lambda node: advice(node, None, alone=True))
        found = [sentence for answered in poll.answered for sentence in answered]
        found += [str(error) for error in (*poll.silent, *poll.refused)]
        infos = await self._poll(server_info)
        if len({info["run_id"] for info in infos.answered}) < len(infos.answered):
            found.append("two hosts of the redlock:// URL are the same Redis server, so a majority is none")
        if len(self._nodes) % 2 == 0:
            found.append(
                f"Redlock over {len(self._nodes)} Redis servers outlives no more failures than over "
                f"{len(self._nodes) - 1}: use an odd number"
            )
        return found

    async def _poll(self, ask: Ask) -> Poll:
        """Ask all nodes at once. Each answers within its time limit, or counts as dead."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        answers = await asyncio.gather(*(ask(node) for node in self._nodes), return_exceptions=True)
        elapsed_ms = (loop.time() - began) * 1000
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, SourceError):
                raise answer
        silent = [answer for answer in answers if isinstance(answer, SourceUnavailableError)]
        refused = [
            answer
            for answer in answers
            if isinstance(answer, SourceError) and not isinstance(answer, SourceUnavailableError)
        ]
        answered = [answer for answer in answers if not isinstance(answer, BaseException)]
        return Poll(len(self._nodes), answered, silent, refused, elapsed_ms)

    def _key(self, lock: str) -> str:
        return f"{self._prefix}redlock:{lock}"

    def _about(self, lock: str) -> str:
        return f"the lock {lock} (key {self._key(lock)})"


def validity_ms(ttl_ms: int, elapsed_ms: float) -> float:
    """How long a majority surely keeps a lock that it was asked for `elapsed_ms` ago."""
    return ttl_ms - elapsed_ms - ttl_ms * DRIFT - DRIFT_MS


def _most_held(held: Sequence[list[Any]]) -> Holder:
    """Return who has most nodes; several at once are rivals, of whom none may have got the lock."""
    if not held:
        return Holder()
    value = Counter(value for value, _ in held).most_common(1)[0][0]
    return holder([value, max(left_ms for other, left_ms in held if other == value)])


def _too_late(about: str, ttl_ms: int, poll: Poll) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"a majority of {poll.nodes} Redis servers gave {about}, but so late ({poll.elapsed_ms:.0f} ms) that nothing "
        f"was left of its {ttl_ms} ms"
    )


def _undecided(about: str, poll: Poll) -> SourceUnavailableError:
    silent = "; ".join(str(error) for error in (*poll.silent, *poll.refused))
    return SourceUnavailableError(
        f"{len(poll.answered)} of {poll.nodes} Redis servers do not decide about {about}: {silent}"
    )
