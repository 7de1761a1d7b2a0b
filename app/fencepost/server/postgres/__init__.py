"""PostgreSQL: connections, the catalog, the fenced statements. What an operator does to the schema is in ops/."""
