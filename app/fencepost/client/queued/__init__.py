"""Writes that are queued: submitting them, and asking what became of them."""
