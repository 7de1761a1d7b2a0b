"""The built-in source: locks and tokens in the protected database itself."""
