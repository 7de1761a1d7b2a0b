"""What one client of a run does: locks, requests over HTTP, statements past the gateway, and what their answers say."""
