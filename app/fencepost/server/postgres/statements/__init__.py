"""The statements that requests become: fenced writes, claims, marks, scopes, reads."""
