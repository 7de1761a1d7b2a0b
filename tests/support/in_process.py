"""A gateway in the test's own event loop: no sockets, for tests that ask thousands of times."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from fencepost.settings import Settings
from fencepost.wiring import create_app


@asynccontextmanager
async def in_process(database: str, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a database until the block ends."""
    handlers, level = logging.root.handlers[:], logging.root.level
    app = create_app(Settings.model_validate({"database_url": database, "log_level": "error", **settings}))
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client,
        ):
            yield client
    finally:  # the app sets up the process's logging: other tests read warnings there
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
