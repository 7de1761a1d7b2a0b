"""What a PostgreSQL of a run leaves behind when it is killed."""

import psycopg

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.processes import server_directory
from fencepost.testing.torture.stages import OwnPrimary


def test_a_primary_keeps_its_shared_memory_in_the_data_directory_which_is_removed() -> None:
    with server_directory() as directory:
        primary = OwnPrimary(embedded_bin_dir(), directory, standby=False)
        try:
            primary.start()
            with psycopg.connect(primary.url) as connection:
                assert connection.execute("SHOW dynamic_shared_memory_type").fetchone() == ("mmap",)
        finally:
            primary.stop()
