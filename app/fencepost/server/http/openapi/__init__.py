"""OpenAPI 3.1, made from the real tables."""
