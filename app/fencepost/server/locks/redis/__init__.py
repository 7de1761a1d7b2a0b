"""The sources `redis` and `redlock`."""
