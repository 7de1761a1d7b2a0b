"""Attacks that are measured: each is run by hand against servers of its own, ends by itself, and prints figures."""
