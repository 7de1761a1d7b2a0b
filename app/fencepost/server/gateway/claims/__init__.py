"""Claims: raising a mark without writing data."""
