"""The asynchronous client of one gateway. Works on asyncio."""

import signal
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import httpx

from fencepost import __version__
from fencepost.client import rows
from fencepost.client.answers import FenceState, LockState
from fencepost.client.batches import Line, Lines, Verdict, decided, landed
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.elections import Elections
from fencepost.client.http import DEFAULT_RETRY, Call, Exchange, Retry, Token
from fencepost.client.lease import (
    FIRST_TOKENS,
    Claims,
    Lease,
    Names,
    PendingReleases,
    Writes,
    default_owner,
    make_acquire_request,
)
from fencepost.client.lock import Lock
from fencepost.client.queued import Submit
from fencepost.client.rows import Filters, Rows, Writer
from fencepost.client.work import FIRST_OF_JOB, Work, make_work_request


class Client(Elections, Rows[Lease]):
    """A client of the gateway at `url`, for one event loop. Close it: `async with Client(url) as c:` does.

    token: a token or API key, sent as `Authorization: Bearer …`; or a callable that gives one, asynchronous or not
        (`token_from_file(…)`). It is asked again when a JWT ends soon, and when the gateway answers 401.
    owner: the holder's name, as others see it; default `user@host:pid`.
    retry: for how long a request that failed is tried again, where that is safe.
    timeout: seconds of silence after which one try is given up (5 at most to connect). An acquire has 10 seconds after
        its wait.
    headers: sent with every request. verify: as httpx takes it.
    decimals: read numbers with a fraction as decimal.Decimal instead of float.
    transport, clock: for tests and for unusual networks.

    Every method raises an error of `fencepost.client.errors`; those that write take exactly one of `lease` and
    `token` (a token of a lock service of your own). Each write is sent under an Idempotency-Key, and again under the
    same one when its answer gets lost: it is done once. `idempotency_key` is for keys that outlive the process, so that
    a successor may repeat the write.
    """

    def __init__(  # noqa: PLR0913 - all but the URL have a default
        self,
        url: str,
        *,
        token: Token | None = None,
        owner: str | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        decimals: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._owner = owner or default_owner()
        self._pending = PendingReleases()
        self._exchange = Exchange(
            url,
            retry=retry,
            clock=clock or SystemClock(),
            timeout=timeout,
            headers={"User-Agent": f"fencepost-python/{__version__}", **(headers or {})},
            verify=verify,
            transport=transport,
            decimals=decimals,
            token=token,
        )
        self._writer = Writer(self._exchange)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for releases that are still under way (seconds), and close all connections."""
        await self._pending.drain()
        await self._exchange.aclose()

    # Locks

    def lock(  # noqa: PLR0913 - all but the name have a default
        self,
        name: Names,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        claim: Claims = False,
        owner: str | None = None,
        tokens: int = FIRST_TOKENS,
        margin: float | None = None,
        cancel_on_loss: bool = False,
        source: str | None = None,
        writes: Writes = (),
    ) -> Lock:
        """Give a lock, or several that are taken together, for an `async with`. Times in seconds; ValueError if
        they make no sense.

        ttl: how long the lease outlives us; it is renewed at a third of it.
        wait: how long to queue for it before LockHeld; None: for ever.
        claim: True claims what the locks are named after, together with the grant: older holders are fenced off before
            we have written (R7). Or the names of other resources.
        tokens: how many to draw with the grant; more are minted when they are used up.
        margin: stop trusting the lease so long before it expires; default 5 % of ttl, at least 20 ms.
        cancel_on_loss: when the lease is lost, cancel the body; the `async with` raises LeaseLost then.
        source: the lock service to take it from, by the name that the gateway has for it; default its own, builtin.
        writes: what the tokens may be used for where the gateway seals them, beside what the locks are named after and
            what is claimed: resources, or `orders/*`.
        """
        owner = owner or self._owner
        request = make_acquire_request(
            name, ttl=ttl, wait=wait, claim=claim, owner=owner, tokens=tokens, source=source, writes=writes
        )
        return Lock(self._exchange, self._pending, request, margin=margin, cancel_on_loss=cancel_on_loss)

    async def locks(self, name: str | None = None, *, source: str | None = None) -> list[LockState]:
        """Return the locks of a source that are held or waited for, by name; or the one of this name, if it is."""
        found: list[LockState] = []
        while True:
            answer = await self._exchange.repeat(rows.locks(name, found[-1].name if found else None, source))
            page = [LockState.read(state) for state in answer.body]
            found += page
            if len(page) < rows.LOCKS_PER_PAGE:
                return found

    # Work

    def work(  # noqa: PLR0913 - all but the table have a default
        self,
        table: str,
        *,
        where: str | Filters = "",
        order: str | None = None,
        ttl: float = 30.0,
        wait: float | None = None,
        owner: str | None = None,
        tokens: int = FIRST_OF_JOB,
        margin: float | None = None,
        pause: float = 1.0,
        stop_on: Sequence[signal.Signals] = (signal.SIGTERM,),
        writes: Writes = (),
    ) -> Work:
        """Give the rows of a table as jobs: `await client.work("jobs", where="status=eq.new").run(handle,
        concurrency=4)`, or `async for job in client.work(…)` for one after another. Times in seconds; ValueError if
        they make no sense.

        where: filters, as in the query of a GET of the table, percent-encoded; or as `select` takes them.
        order: which row comes first, `"priority.desc,created_at"`; default: by the key.
        ttl: how long a lease outlives us; it is renewed at a third of it.
        wait: the work ends when no row came for so long, at once with 0; None: it waits for rows until it is stopped.
        tokens: how many to draw for each job; more are minted when they are used up.
        margin: as of `lock`.
        pause: how long the row of a job that failed stays taken before it is next again: so long after the first
            attempt, doubled with each, up to 60, with jitter.
        stop_on: signals that stop the work, as `stop` does. Where the program has a handler of its own for them, that
            is put back when the work ends. Only in the main thread.
        writes: as of `lock`.
        """
        request = make_work_request(
            table,
            where=where,
            order=order,
            ttl=ttl,
            wait=wait,
            owner=owner or self._owner,
            tokens=tokens,
            writes=writes,
        )
        return Work(self._exchange, self._pending, self._writer, request, margin=margin, pause=pause, stop_on=stop_on)

    # Queues

    @property
    def submit(self) -> Submit:
        """Writes that are queued instead of done at once: `client.submit.patch("orders", "order-1", {…})`."""
        return Submit(self._exchange, self._writer)

    # Many writes

    def batch(self, lines: Lines) -> AsyncGenerator[Verdict, None]:
        """Send many writes and claims in few requests: `async for verdict in client.batch(lines)`.

        A line is a mapping, as docs/batch.md has it; those on one resource take effect in their order. Verdicts come in
        the order of the lines, also of those that were refused, which stop nobody. Lines are taken as they are sent,
        in a thread of its own if they are of an iterable that may wait: there may be any number. What has no
        Idempotency-Key gets one, and is sent again under it while `retry` allows it; after the error that is raised
        then, the next lines may have landed. TypeError and ValueError name a line that is none; it and what has no
        verdict were not sent.
        """
        return decided(self._exchange, lines)

    async def batch_atomic(self, lines: Iterable[Line]) -> list[Verdict]:
        """Send writes and claims that land all, or none, in one transaction: their verdicts, in order.

        The first line that is refused is raised as what a call of it would have raised; its number is
        `error.problem.members["line"]`. Lines are as in `batch`, at most as many as FENCEPOST_MAX_ROWS of the gateway.
        """
        return await landed(self._exchange, lines)

    # Fences

    async def fence(self, resource: str) -> FenceState:
        """Return what is known of a resource: mark, rule, source, story."""
        call = Call(method="GET", path="/v1/fences", params=[("resource", resource)])
        return FenceState.read((await self._exchange.repeat(call)).body)
