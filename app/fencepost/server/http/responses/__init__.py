"""Outcomes as answers: statuses, headers, bodies."""
