"""A live gateway: uvicorn with a loop and a thread of its own, on a free port."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from tests.support.unhurried import UNHURRIED

from fencepost.server.serving.guarded import GuardedProtocol
from fencepost.server.settings import Settings
from fencepost.server.times import Times
from fencepost.server.wiring import create_app
from fencepost.testing.servers.processes import PATIENCE


@contextlib.contextmanager
def serving(settings: Settings, times: Times = UNHURRIED) -> Iterator[str]:
    """Run a gateway until the block ends; yields its base URL. A start that fails raises."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_app(settings, times)
        config = uvicorn.Config(
            app, http=GuardedProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="gateway")
        thread.start()
        try:
            base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            _wait_until_it_answers(base_url, thread)
            yield base_url
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the gateway did not stop"


def _wait_until_it_answers(base_url: str, thread: threading.Thread) -> None:
    # The listener takes connections from the start, so one request waits for the server: no polling.
    with httpx.Client(base_url=base_url, timeout=0.25, trust_env=False) as client:
        for _ in range(int(PATIENCE / 0.25)):
            assert thread.is_alive(), "the gateway did not start"
            with contextlib.suppress(httpx.TransportError):
                if client.get("/healthz").is_success:
                    return
    pytest.fail(f"the gateway did not answer within {PATIENCE} seconds")
