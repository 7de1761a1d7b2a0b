"""What an oracle found: a promise of docs/rules.md is broken.

A stale write was accepted, an acknowledged write is lost, two hold one lock, an operation had two effects. It is never
looked at a second time (second_look.py): a race that was lost once in a hundred runs is lost.
"""

import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_SHOWN = 20
"""How many of the things that are wrong a message has."""


class Violation(AssertionError):  # noqa: N818 - the word of docs and reports
    """A promise is broken. The message has the seed that shows it again, where there is one."""


def assert_none(wrong: Iterable[str], *context: str) -> None:
    """Raise Violation with what an oracle lists as wrong. `context`: the seed, what was answered, logs."""
    if found := list(wrong):
        raise Violation("\n".join([*context[:1], *found[:_SHOWN], *context[1:]]))


def promised(kept: object, broken: str, *context: str) -> None:
    """Raise Violation unless a promise is kept. `broken`: what happened instead."""
    assert_none([] if kept else [broken], *context)


@contextmanager
def judging(within: float = 9.0) -> Iterator[None]:
    """Have what a stepped test asserts of the product raise Violation.

    What keeps a test from being stepped at all, as a wait that came to its end, is no AssertionError and stays
    what it is. So does an AssertionError after more than `within` seconds: by then sessions may have given up waiting
    for a lock, and leases may have ended (10 seconds and more), so that it may say nothing of the product.
    """
    began = time.monotonic()
    try:
        yield
    except Violation:
        raise
    except AssertionError as error:
        if time.monotonic() - began > within:
            raise
        raise Violation(_words(error)) from error


def _words(error: AssertionError) -> str:
    """Give what was asserted, and the message: pytest puts it into the messages of test modules only."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{where.name}: {where.line}\n{error}".rstrip()


def violations_in(error: BaseException | None) -> list[Violation]:
    """List the violations in an exception, in those of its group, and in what it was raised from or during."""
    found: list[Violation] = []
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Violation):
            found.append(each)
            continue
        left += [each.__context__, each.__cause__]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return found
