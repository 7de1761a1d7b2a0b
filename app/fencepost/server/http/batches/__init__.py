"""POST /v1/batch: its lines, their order, and their verdicts."""
