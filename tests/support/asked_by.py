"""What is done as the request of a caller, for tests of callers' shares."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from fencepost.server.quota import ASKING

T = TypeVar("T")


def asked_by(name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Do it as the request of a caller."""
    context = copy_context()
    context.run(ASKING.set, name)
    return asyncio.create_task(work, context=context)
