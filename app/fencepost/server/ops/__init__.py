"""What an operator runs: protect, doctor, the schema's revisions, the demo, the embedded PostgreSQL."""
