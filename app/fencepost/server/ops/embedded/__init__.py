"""An embedded PostgreSQL: the real server as our child process, on a data directory of ours."""
