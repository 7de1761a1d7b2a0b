"""Writes by key, by filter and by array: planned once, decided alone or in a batch, answered after the commit."""
