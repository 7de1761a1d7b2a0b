"""Locks, the leases that they give, and how long a lease can be trusted."""
