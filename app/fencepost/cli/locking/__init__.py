"""Running a command under a lock: `fencepost lock`, `elect` and `mint` share it."""
