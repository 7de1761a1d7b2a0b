"""A fault: it begins, and ends."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar


class FaultError(Exception):
    """A fault cannot be brought about as asked. The message says why, and what to do instead."""


class FaultUnavailableError(FaultError):
    """This machine cannot bring the fault about. The message says what to install."""


P = ParamSpec("P")
T = TypeVar("T")


class Fault(ContextDecorator, AbstractContextManager[T], Generic[T]):
    """A context manager that can be used again, one block after the other or one in the other. It begins with each
    block, and is undone at its end. It can decorate a function, too.

    A block that ends is the last one of its own thread, where that has one: blocks of other threads may be open.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._open: list[tuple[int, AbstractContextManager[T]]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> T:
        fresh = self._make()
        given = fresh.__enter__()
        with self._lock:
            self._open.append((threading.get_ident(), fresh))
        return given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        with self._lock:
            ours = [number for number, (thread, _) in enumerate(self._open) if thread == threading.get_ident()]
            _, ended = self._open.pop(ours[-1] if ours else -1)
        return ended.__exit__(kind, error, traceback)


def fault(function: Callable[P, Iterator[T]]) -> Callable[P, Fault[T]]:
    """Make a fault of a function that brings it about, yields once, and undoes it.

    The objects of contextlib.contextmanager work once, and fail with an AttributeError when they are used again.
    """
    make = contextmanager(function)

    @functools.wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Fault[T]:
        return Fault(lambda: make(*args, **kwargs))

    return begin
