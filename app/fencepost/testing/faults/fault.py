"""What a fault is: a context manager that can be used again, one block after the other or one in the other."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Fault(ContextDecorator, AbstractContextManager[T], Generic[T]):
    """Begins with each block, and is undone at its end. It can decorate a function, too."""

    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        fresh = self._make()
        given = fresh.__enter__()
        self._open.append(fresh)
        return given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._open.pop().__exit__(kind, error, traceback)


def fault(function: Callable[P, Iterator[T]]) -> Callable[P, Fault[T]]:
    """Make a fault of a function that brings it about, yields once, and undoes it.

    The objects of contextlib.contextmanager work once, and fail with an AttributeError when they are used again.
    """
    make = contextmanager(function)

    @functools.wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Fault[T]:
        return Fault(lambda: make(*args, **kwargs))

    return begin
