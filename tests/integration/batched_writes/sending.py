"""Requests that are sent at the same moment, so that they are one batch."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.support.use_cases import result_of

from fencepost.server.gateway.outcomes import Outcome


async def together(*works: Coroutine[Any, Any, Outcome]) -> list[str]:
    return [result_of(answer) for answer in await asyncio.gather(*works)]
