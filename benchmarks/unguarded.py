"""`fencepost` on uvicorn's own connections, which have no bounds: what serving/protocol.py costs is the difference.

python -m benchmarks.unguarded serve --port 0
"""

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.cli.main import main
from fencepost.server.serving import server

if TYPE_CHECKING:
    from uvicorn import Config

    from fencepost.server.settings import Settings

_config = server._config  # noqa: SLF001 - only this benchmark serves otherwise


def _unguarded(settings: "Settings") -> "Config":
    config = _config(settings)
    config.http = HttpToolsProtocol
    return config


if __name__ == "__main__":
    server._config = _unguarded  # noqa: SLF001 - see above
    main()
