"""`fencepost` whose connections have no bounds (serving/guarded.py): what these cost is the difference.

python -m benchmarks.unguarded serve --port 0
"""

from typing import TYPE_CHECKING

from fencepost.cli.main import main
from fencepost.server.serving import server
from fencepost.server.serving.parsing import DrainingProtocol

if TYPE_CHECKING:
    from uvicorn import Config

    from fencepost.server.settings import Settings

_config = server._config  # noqa: SLF001 - only this benchmark serves otherwise


def _unguarded(settings: "Settings") -> "Config":
    config = _config(settings)
    config.http = DrainingProtocol
    return config


if __name__ == "__main__":
    server._config = _unguarded  # noqa: SLF001 - see above
    main()
