"""The embedded PostgreSQL as a server that faults can be brought upon: paused, killed, and started again on its
port.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fencepost.server.ops.embedded.server import PostgresServer
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.processes import kill_tree
from fencepost.testing.servers.server import ServerError
from fencepost.testing.servers.starter import in_lasting_thread

QUICK: Final = {
    "dynamic_shared_memory_type": "mmap",  # in the data directory: what a killed server leaves is removed with it
    "jit": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "shared_buffers": "16MB",
}
"""Settings for a server whose data is small and gone after the test. It is as durable as by default."""


class Postgres(PostgresServer):
    """PostgreSQL from `bin_dir` on `data_dir`. Its URL stays the same when it is killed and started again.

    It can be started in any thread, and ends with this process. Errors of its start are EmbeddedServerError.
    """

    def __init__(self, *, bin_dir: Path, data_dir: Path, options: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(bin_dir=bin_dir, data_dir=data_dir, port=free_port(), options={**QUICK, **options})

    @property
    def pid(self) -> int:
        """The pid of the postmaster. ServerError when it does not run."""
        if self._child is None:
            raise ServerError("PostgreSQL does not run")
        return self._child.pid

    def start(self) -> None:
        """Start it, and return once it takes connections. EmbeddedServerError when it does not."""
        in_lasting_thread(super().start)

    def _require_lasting_thread(self) -> None:
        """Take any: `start` has chosen one."""

    def crash(self) -> None:
        """End it as a power failure does, with all its backends."""
        if self._child is not None:
            kill_tree(self._child.pid)
            self._child.wait()
        self.stop()

    def wait(self) -> None:
        """Return at once: `start` has waited until it takes connections."""
