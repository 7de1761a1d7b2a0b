"""`protect` and `unprotect`: what is checked, and the DDL that puts triggers on a table."""
