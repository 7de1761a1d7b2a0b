"""The commands about queues: `fencepost queue`, `consume` and `dead`."""
