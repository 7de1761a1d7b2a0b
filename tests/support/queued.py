"""A gateway in the test's own event loop, whose default queue is a log in memory: a mock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httpx
from tests.support.asking import Api
from tests.support.mock_log import MockLog

from fencepost.server.gateway.gateway import DEFAULT_QUEUE, Gateway
from fencepost.server.queues.log import Log, Message
from fencepost.server.settings import Settings
from fencepost.server.times import TIMES, Times
from fencepost.server.wiring import create_app

if TYPE_CHECKING:
    from fencepost.server.http.app import Application


@dataclass
class Queued:
    """What asks the gateway, its parts, and the log."""

    api: Api
    gateway: Gateway
    log: MockLog

    @property
    def last(self) -> Message:
        """The message that was appended last, of a test that appends to one resource."""
        return self.log.messages[-1]


@asynccontextmanager
async def queueing(database: str, times: Times = TIMES, /, **settings: object) -> AsyncIterator[Queued]:
    """Serve a database until the block ends."""
    given = {"database_url": database, "log_level": "error", "consume_here": False, **settings}
    app = cast("Application", create_app(Settings.model_validate(given), times))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=30) as client,
    ):
        log, gateway = MockLog(), app.gateway()
        cast("dict[str, Log]", gateway.queues)[DEFAULT_QUEUE] = log
        yield Queued(Api("http://localhost", client), gateway, log)
