"""The thread that starts servers: it lives as long as this process.

The kernel ends a server together with the thread that started it (die_with_parent). A test that kills a server in a
thread of its own starts it again there, and that thread ends soon.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_lock: Final = threading.Lock()
_queues: Final[dict[int, "queue.SimpleQueue[Callable[[], None]]"]] = {}
"""By pid: a fork has no thread but its own."""


def in_lasting_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread that ends only with this process; called in the main thread, it is that one.

    Raises what the function raises.
    """
    if threading.current_thread() is threading.main_thread():
        return work()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was called
            done.set_exception(error)

    _requests().put(run)
    found: T = done.result()
    return found


def _requests() -> "queue.SimpleQueue[Callable[[], None]]":
    with _lock:
        if os.getpid() not in _queues:
            requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(requests,), name="starter of servers", daemon=True).start()
            _queues[os.getpid()] = requests
        return _queues[os.getpid()]


def _serve(requests: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        requests.get()()
