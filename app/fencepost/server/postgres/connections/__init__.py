"""Connections to PostgreSQL: which database is behind one, what its session has in force, who is lent which."""
