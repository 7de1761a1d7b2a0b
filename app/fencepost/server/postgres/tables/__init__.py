"""The users' tables as pg_catalog describes them: read, cached, and read again when they change."""
