"""Reading and writing rows."""
