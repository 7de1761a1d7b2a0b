"""The commands about leases: `fencepost lock` and `elect`, which run a command under one, `mint` and `release`."""
