"""PostgreSQL: connections, catalog, protection (DDL) and the fenced statements."""
