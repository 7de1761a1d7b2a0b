"""Run a PostgresServer until stdin ends, as a process for tests to kill: BIN_DIR DATA_DIR [UID].

Prints the server's URL once it is up, or the message of an EmbeddedServerError, each on one line. With UID it
becomes that user first.
"""

import os
import sys
from pathlib import Path

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import EmbeddedServerError


def supervise(bin_dir: Path, data_dir: Path, uid: int | None) -> int:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    try:
        with PostgresServer(bin_dir=bin_dir, data_dir=data_dir) as server:
            print(server.url, flush=True)  # noqa: T201 - the test reads it
            sys.stdin.read()
    except EmbeddedServerError as error:
        print(f"error: {error}", flush=True)  # noqa: T201 - the test reads it
        return 1
    return 0


sys.exit(supervise(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))
