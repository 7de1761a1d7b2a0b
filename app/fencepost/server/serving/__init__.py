"""The processes of `fencepost serve`: the parent that accepts, and its workers."""
