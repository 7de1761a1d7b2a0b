"""A gateway in the test's own event loop: no sockets, for tests that ask thousands of times."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from tests.support.unhurried import UNHURRIED

from fencepost.server.settings import Settings
from fencepost.server.times import Times
from fencepost.server.wiring import create_app


@asynccontextmanager
async def in_process(database: str, times: Times = UNHURRIED, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a database until the block ends."""
    app = create_app(Settings.model_validate({"database_url": database, "log_level": "error", **settings}), times)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        yield client
