"""The queue postgres:default: a table of the protected database (migrations/schema/queued.sql), there without anything
else installed.
"""
