"""Writes of many requests in one transaction: gathered, sorted, sent with one Sync, answered one by one."""
