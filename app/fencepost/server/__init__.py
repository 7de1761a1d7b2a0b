"""The gateway: HTTP in front of PostgreSQL. ARCHITECTURE.md names the parts, and the way of a write through them."""
