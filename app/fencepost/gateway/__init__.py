"""Use cases, one verb a file. They know tables, tokens and transactions, and nothing of HTTP."""
