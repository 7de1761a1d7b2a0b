"""Events of the gateway, and what subscribes to them: logs and metrics."""
