"""The event loop of the synchronous client."""

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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
        """Start the thread."""
        if self._loop is not None:
            raise RuntimeError("this SyncClient is already open")
        ready: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        serve = functools.partial(self._serve, ready, self._closing)
        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fencepost client", daemon=True)
        self._thread.start()
        self._loop, self._process = ready.result(), os.getpid()

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
