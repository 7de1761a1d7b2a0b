"""Use cases. They know tables, tokens and transactions, and nothing of HTTP."""
