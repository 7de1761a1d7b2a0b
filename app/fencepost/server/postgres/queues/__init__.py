"""Queues as PostgreSQL remembers them, and the log that is a table of it: one statement a verb. The rules are in
migrations/schema: queues.sql, queue_looks.sql, queue_results.sql, queued.sql.
"""
