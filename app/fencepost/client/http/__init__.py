"""Requests and answers: retries, idempotency, JSON."""
