"""`SyncClient`, and its leases and queued writes: the asynchronous ones under the same names, for programs without
asyncio.
"""

import asyncio
import contextlib
import functools
import inspect
import os
import signal
import ssl
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from types import GenericAlias, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, get_args, overload

import httpx

from fencepost.client.answers import Claimed, FenceToken, Key, Row
from fencepost.client.batches import MOST_BYTES, MOST_LINES, SECONDS, Line, Ready, Verdict, as_sent, decide
from fencepost.client.client import Client
from fencepost.client.clock import Clock, SystemClock
from fencepost.client.elections import Campaign, Leader, Term
from fencepost.client.errors import LeaseLost
from fencepost.client.http import DEFAULT_RETRY, Retry, Token
from fencepost.client.lease import FIRST_TOKENS, Claims, Lease, Names, Writes
from fencepost.client.lock import Lock
from fencepost.client.queued import QueuedWrite, Submit, SubmitCalls
from fencepost.client.rows import Filters, How, Rows
from fencepost.client.work import FIRST_OF_JOB, Job, Work, stopping_on

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, from `open` to `close`.

    A daemon thread: a program that forgets to close its client ends all the same, and its leases with it. A process
    that is forked has no such thread: there nothing can be run.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = asyncio.Event()
        self._process = 0
        """The process that has the thread."""

    def open(self) -> None:
        if self._loop is not None:
            raise RuntimeError("this SyncClient is already open")
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        serve = functools.partial(self._serve, ready, self._closing)
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fencepost client", daemon=True)
        self._thread.start()
        self._loop, self._process = ready.result(), os.getpid()

    def soon(self, call: Callable[[], object]) -> None:
        """Have the call made in the loop, and do not wait for it. From any thread, and from a handler of a signal."""
        if self._loop is not None and not self.is_of_another_process:
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """End the thread, and what still runs in it."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return self._loop is not None and self._process != os.getpid()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work in the loop, and wait for it. An interrupt (Ctrl-C) of the waiting thread cancels the work."""
        if self._loop is None:
            raise RuntimeError("this SyncClient is not open: `with SyncClient(url) as c:`")
        if self.is_of_another_process:
            raise RuntimeError(
                f"this SyncClient was opened by the process {self._process}, from which this one was forked: its thread"
                " and its connections are there. Open a SyncClient in each process, after the fork"
            )
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    async def _serve(ready: "Future[asyncio.AbstractEventLoop]", closing: asyncio.Event) -> None:
        ready.set_result(asyncio.get_running_loop())
        await closing.wait()


# A call of a synchronous object is the method of the asynchronous one behind it, with the same arguments and the same
# answer; at run time, for `help()`, also with the same signature and docstring. Only a lease is a SyncLease.


class Passing(Generic[A]):
    """What passes its calls on to `asynchronous`, which runs in the client's own loop."""

    def __init__(self, asynchronous: A, loop: Loop) -> None:
        self.asynchronous = asynchronous
        self._loop = loop

    def __init_subclass__(cls) -> None:
        """Name each call that `passed` has made after this class and its attribute: `help()` shows it."""
        super().__init_subclass__()
        for name, call in vars(cls).items():
            if "__signature__" in getattr(call, "__dict__", ()):
                call.__qualname__, call.__module__ = f"{cls.__qualname__}.{name}", cls.__module__


def passed(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the call that passes its arguments on to the method, and waits for the answer."""
    return _passed(method, lambda answer, _: answer, inspect.signature(method).return_annotation)


def queueing(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, QueuedWrite[T]]],
) -> Callable[Concatenate[Any, P], "SyncQueuedWrite[T]"]:
    """Make the call, as `passed` does, of a method that gives a queued write."""
    (result,) = get_args(inspect.signature(method).return_annotation)
    return _passed(method, SyncQueuedWrite, GenericAlias(SyncQueuedWrite, result))


def _passed(method: Callable[..., Any], read: Callable[[Any, Loop], Any], annotation: object) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Passing[Any], *given: Any, **named: Any) -> Any:
        if named.get("lease") is not None:
            named["lease"] = named["lease"].asynchronous
        return read(self._loop.run(lambda: method(self.asynchronous, *given, **named)), self._loop)

    asked = inspect.signature(method)
    parameters = [
        each.replace(annotation=SyncLease | None) if each.name == "lease" else each
        for each in asked.parameters.values()
    ]
    call.__doc__ = _of_threads(method)
    call.__annotations__ = {each.name: each.annotation for each in parameters[1:]} | {"return": annotation}
    call.__dict__["__signature__"] = asked.replace(parameters=parameters, return_annotation=annotation)
    return call


def _told_by(method: Callable[..., object]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give a call the docstring of the asynchronous method."""

    def tell(call: Callable[P, T]) -> Callable[P, T]:
        call.__doc__ = _of_threads(method)
        return call

    return tell


def _of_threads(method: Callable[..., object]) -> str:
    """Give the docstring without what only asyncio has: a thread's body cannot be cancelled."""
    lines = [line for line in (method.__doc__ or "").split("\n") if not line.strip().startswith("cancel_on_loss:")]
    return (
        "\n".join(lines)
        .replace("an `async with`", "a `with`")
        .replace("`async with`", "`with`")
        .replace("`await ", "`")
        .replace("`async for", "`for")
    )


class SyncLease(Passing[Lease]):
    """A lease, as `Lease` is, for code that is not asynchronous."""

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<Lease", "<SyncLease", 1)

    @property
    def id(self) -> str:
        """The lease's public id."""
        return self.asynchronous.id

    @property
    def secret(self) -> str:
        """What renews, mints and releases; keep it."""
        return self.asynchronous.secret

    @property
    def locks(self) -> tuple[str, ...]:
        """The names of all its locks."""
        return self.asynchronous.locks

    @property
    def owner(self) -> str:
        """The holder's name, as others see it."""
        return self.asynchronous.owner

    @property
    def ttl(self) -> float:
        """Seconds."""
        return self.asynchronous.ttl

    @property
    def granted_at(self) -> datetime | None:
        """When it was granted, by the database's clock."""
        return self.asynchronous.granted_at

    @property
    def expires_at(self) -> datetime | None:
        """When it would have expired, as of the grant, by the database's clock."""
        return self.asynchronous.expires_at

    @property
    def claims(self) -> tuple[Claimed, ...]:
        """What was claimed with the grant, in the order of the claims asked for."""
        return self.asynchronous.claims

    @property
    def lock(self) -> str | None:
        """The lock's name; None if the lease has several."""
        return self.asynchronous.lock

    @property
    def row(self) -> Row | None:
        """The row that the claim returned, as it is behind the fence; None where the key has no row.

        LookupError if the lock was not acquired with exactly one claim: `claims` has them all.
        """
        return self.asynchronous.row

    @property
    def trusted(self) -> bool:
        """Whether the lease can be trusted at this moment, by the clock. Once it was False it stays False."""
        return self.asynchronous.trusted

    @property
    def remaining(self) -> float:
        """Seconds of trust that are left unless a renewal comes; 0 once it has ended."""
        return self.asynchronous.remaining

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment."""
        self.asynchronous.check()

    next_token, claim, release = passed(Lease.next_token), passed(Lease.claim), passed(Lease.release)

    def wait_lost(self, timeout: float | None = None) -> LeaseLost | None:
        """Wait until the lease is lost, and return why; None after `timeout` seconds."""

        async def wait() -> LeaseLost | None:
            try:
                return await asyncio.wait_for(self.asynchronous.lost, timeout)
            except TimeoutError:
                return None

        return self._loop.run(wait)

    @contextlib.contextmanager
    def operation(self, resource: str | None = None) -> Iterator[FenceToken]:
        """Give a fresh token when no other write of this lease is under way on the resource (None: on any)."""
        operation = self.asynchronous.operation(resource)
        token = self._loop.run(operation.__aenter__)
        try:
            yield token
        finally:
            self._loop.run(lambda: operation.__aexit__(None, None, None))


class SyncTerm(SyncLease):
    """A leader's lease, as `Term` is."""

    asynchronous: Term

    def __init__(self, term: Term, loop: Loop) -> None:
        super().__init__(term, loop)

    @property
    def election(self) -> str:
        """The election's name."""
        return self.asynchronous.election

    @property
    def term(self) -> int:
        """The number of the lease. A later leader's is larger."""
        return self.asynchronous.term


class SyncLock:
    """Used once, with `with`. Entering raises LockHeld when the wait is over, or why it could not be asked."""

    def __init__(self, lock: Lock, loop: Loop) -> None:
        self._lock = lock
        self._loop = loop

    def __enter__(self) -> SyncLease:
        settled = asyncio.Event()
        settled.set()  # until it begins

        async def enter() -> Lease:
            settled.clear()
            try:
                return await self._lock.__aenter__()
            finally:
                settled.set()

        async def leave_if_entered() -> None:
            await settled.wait()
            if self._lock.entered:
                await self._lock.__aexit__(None, None, None)

        try:
            return self._make_lease(self._loop.run(enter))
        except BaseException:
            # Ctrl-C may come when the lock is ours already: then it would never be left.
            self._loop.run(leave_if_entered)
            raise

    def _make_lease(self, lease: Lease) -> SyncLease:
        return SyncLease(lease, self._loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._loop.is_of_another_process:
            return  # which has the lease; what ends this one goes on
        self._loop.run(lambda: self._lock.__aexit__(kind, error, traceback))


class SyncCampaign(SyncLock):
    """Used once, with `with`. Entering returns when we are elected; LockHeld when the wait is over."""

    def __init__(self, campaign: Campaign, loop: Loop) -> None:
        super().__init__(campaign, loop)

    def __enter__(self) -> SyncTerm:
        term = super().__enter__()
        if not isinstance(term, SyncTerm):
            raise TypeError(f"a campaign ended with {term!r}")
        return term

    def _make_lease(self, lease: Lease) -> SyncLease:
        return SyncTerm(lease, self._loop) if isinstance(lease, Term) else super()._make_lease(lease)


class SyncJob(Passing[Job]):
    """A row that was taken, as `Job` is."""

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<Job", "<SyncJob", 1)

    @property
    def name(self) -> str:
        """The name of the row, and of its lock: `jobs/17`."""
        return self.asynchronous.name

    @property
    def table(self) -> str:
        """The table's name."""
        return self.asynchronous.table

    @property
    def key(self) -> Key:
        """The row's key; of several columns: a tuple of their values, as texts."""
        return self.asynchronous.key

    @property
    def row(self) -> Row:
        """The row, as it was when it was taken: no older holder has changed it since."""
        return self.asynchronous.row

    @property
    def attempt(self) -> int:
        """How often the row was taken, this time included: 1 at first."""
        return self.asynchronous.attempt

    @property
    def lease(self) -> SyncLease:
        """The lease: for tokens, and for other writes (`client.patch(…, lease=job.lease)`)."""
        return SyncLease(self.asynchronous.lease, self._loop)

    patch, put, delete = passed(Job.patch), passed(Job.put), passed(Job.delete)


class SyncWork(Passing[Work]):
    """Rows of a table as jobs, as `Work` is: `for job in work`, or `work.run(handle, concurrency=4)` in threads."""

    def __init__(self, work: Work, loop: Loop, stop_on: Sequence[signal.Signals]) -> None:
        super().__init__(work, loop)
        self._stop_on = stop_on

    def stop(self, *, now: bool = False) -> None:
        """Take no more. Running jobs are finished; `now`: their leases are given back, and what they still write is
        LeaseLost. From any thread, and from a handler of a signal.
        """
        self._loop.soon(functools.partial(self.asynchronous.stop, now=now))

    def _on_signal(self) -> None:
        self._loop.soon(self.asynchronous.on_signal)

    def __iter__(self) -> Generator[SyncJob, None, None]:
        """Give one job after another. A body that raises ends the loop, and its row is next again at once."""
        jobs = self.asynchronous.__aiter__()

        async def following() -> Job | None:
            return await anext(jobs, None)

        async def close() -> None:
            await jobs.aclose()

        with stopping_on(self._stop_on, self._on_signal):
            try:
                while (job := self._loop.run(following)) is not None:
                    yield SyncJob(job, self._loop)
            finally:
                with contextlib.suppress(RuntimeError):  # the client is closed already, and its leases with it
                    self._loop.run(close)

    def run(self, handle: Callable[[SyncJob], object], *, concurrency: int = 1, drain: float = 30.0) -> None:
        """Call `handle(job)` in threads, for up to `concurrency` jobs at once; see `Work.run`.

        A thread cannot be cancelled: where `Work` cancels a job, here its lease is given back, its writes raise
        LeaseLost, and its place is free when it returns. Ask `job.lease.trusted` in long computations.
        """
        with stopping_on(self._stop_on, self._on_signal), ThreadPoolExecutor(concurrency, "fencepost job") as threads:

            async def in_thread(job: Job) -> None:
                doing = asyncio.get_running_loop().run_in_executor(threads, handle, SyncJob(job, self._loop))
                try:
                    await asyncio.shield(doing)
                except asyncio.CancelledError:
                    await job.lease.release()
                    await asyncio.gather(doing, return_exceptions=True)
                    raise

            self._loop.run(lambda: self.asynchronous.run(in_thread, concurrency=concurrency, drain=drain))


class SyncQueuedWrite(Passing[QueuedWrite[T]], Generic[T]):
    """A write that was queued, as `QueuedWrite` is."""

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<QueuedWrite", "<SyncQueuedWrite", 1)

    @property
    def id(self) -> str | None:
        """What names it."""
        return self.asynchronous.id

    state, result = passed(QueuedWrite[T].state), passed(QueuedWrite[T].result)


class SyncSubmit(Passing[Submit]):
    """Writes that are queued instead of done at once, as `Submit` has them."""

    post, patch = queueing(SubmitCalls[SyncLease].post), queueing(SubmitCalls[SyncLease].patch)
    put, delete = queueing(SubmitCalls[SyncLease].put), queueing(SubmitCalls[SyncLease].delete)

    def queued(self, write_id: str) -> SyncQueuedWrite[Any]:
        """Give a write that was queued before, maybe by another process; its result is the JSON of its answer."""
        return SyncQueuedWrite(self.asynchronous.queued(write_id), self._loop)


# The client for code that is not asynchronous: the same one, on an event loop in a thread of its own.
#
# So a lease is renewed while its holder computes. All methods may be called from any thread.

_post = passed(Rows[SyncLease].post)


class SyncClient(Passing[Client]):
    """A client of the gateway at `url`: `with SyncClient(url) as c:`. Arguments and methods are those of `Client`.

    A lock's body cannot be cancelled from outside here: ask `lease.trusted` in long computations.
    """

    def __init__(
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
        client = Client(
            url,
            token=token,
            owner=owner,
            retry=retry,
            timeout=timeout,
            headers=headers,
            verify=verify,
            decimals=decimals,
            transport=transport,
            clock=clock,
        )
        super().__init__(client, Loop())

    def __enter__(self) -> Self:
        self._loop.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for releases that are still under way (seconds), close all connections, and end the thread."""
        try:
            if not self._loop.is_of_another_process:  # which closes its connections itself
                self._loop.run(self.asynchronous.aclose)
        finally:
            self._loop.close()

    locks, fence, leader = passed(Client.locks), passed(Client.fence), passed(Client.leader)
    get, select = passed(Client.get), passed(Client.select)
    patch, put, delete = passed(Rows[SyncLease].patch), passed(Rows[SyncLease].put), passed(Rows[SyncLease].delete)
    patch_where, delete_where = passed(Rows[SyncLease].patch_where), passed(Rows[SyncLease].delete_where)
    patch_rows, claim = passed(Rows[SyncLease].patch_rows), passed(Rows[SyncLease].claim)
    batch_atomic = passed(Client.batch_atomic)

    @overload
    def post(self, table: str, rows: Mapping[str, Any], **how: Unpack[How[SyncLease]]) -> Row: ...

    @overload
    def post(self, table: str, rows: Sequence[Mapping[str, Any]], **how: Unpack[How[SyncLease]]) -> list[Row]: ...

    @overload
    def post(
        self, table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], **how: Unpack[How[SyncLease]]
    ) -> Row | list[Row]: ...

    def post(
        self, table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], **how: Unpack[How[SyncLease]]
    ) -> Row | list[Row]:
        """Insert a row, or several in one transaction; returns what was stored."""
        return _post(self, table, rows, **how)

    @property
    def submit(self) -> SyncSubmit:
        """Writes that are queued instead of done at once: `client.submit.patch("orders", "order-1", {…})`."""
        return SyncSubmit(self.asynchronous.submit, self._loop)

    def batch(self, lines: Iterable[Line]) -> Generator[Verdict, None, None]:
        """Send many writes and claims: `for verdict in client.batch(lines)`; see `Client.batch`. Lines are taken in the
        caller's thread, so many at a time as a request has, or as there are when one has kept it waiting.
        """
        exchange = self.asynchronous._exchange  # noqa: SLF001 - the two are one client
        for first, chunk in _requests(lines):
            verdicts, failed = self._loop.run(functools.partial(decide, exchange, chunk, first))
            yield from verdicts
            if failed is not None:
                raise failed

    def leaders(self, name: str, *, source: str | None = None) -> Generator[Leader | None, None, None]:
        """Observe an election: `for leader in client.leaders("scheduler")`; see `Client.leaders`."""
        observed = self.asynchronous.leaders(name, source=source)

        async def following() -> Leader | None:
            return await anext(observed)

        async def close() -> None:
            await observed.aclose()

        try:
            while True:
                yield self._loop.run(following)
        finally:
            with contextlib.suppress(RuntimeError):  # the client is closed already, and the stream with it
                self._loop.run(close)

    @_told_by(Client.lock)
    def lock(
        self,
        name: Names,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        claim: Claims = False,
        owner: str | None = None,
        tokens: int = FIRST_TOKENS,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncLock:
        return SyncLock(
            self.asynchronous.lock(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                owner=owner,
                tokens=tokens,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )

    @_told_by(Client.work)
    def work(
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
    ) -> SyncWork:
        work = self.asynchronous.work(
            table,
            where=where,
            order=order,
            ttl=ttl,
            wait=wait,
            owner=owner,
            tokens=tokens,
            margin=margin,
            pause=pause,
            stop_on=(),
            writes=writes,
        )
        return SyncWork(work, self._loop, stop_on)

    @_told_by(Client.elect)
    def elect(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = None,
        claim: Claims = False,
        also: Names = (),
        owner: str | None = None,
        margin: float | None = None,
        source: str | None = None,
        writes: Writes = (),
    ) -> SyncCampaign:
        return SyncCampaign(
            self.asynchronous.elect(
                name,
                ttl=ttl,
                wait=wait,
                claim=claim,
                also=also,
                owner=owner,
                margin=margin,
                source=source,
                writes=writes,
            ),
            self._loop,
        )


def _requests(lines: Iterable[Line]) -> Iterator[tuple[int, list[Ready]]]:
    """Gather the lines of a request, for as long as they come quickly; with the number of its first one."""
    clock, chunk, size, number = SystemClock(), list[Ready](), 0, 0
    due = clock.now() + SECONDS
    for number, line in enumerate(lines, 1):
        ready = as_sent(number, line)
        full = size + len(ready.text) > MOST_BYTES
        if chunk and (full or len(chunk) == MOST_LINES):
            yield number - len(chunk), chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
        chunk.append(ready)
        size += len(ready.text)
        if clock.now() >= due:
            yield number - len(chunk) + 1, chunk
            chunk, size, due = [], 0, clock.now() + SECONDS
    if chunk:
        yield number - len(chunk) + 1, chunk
