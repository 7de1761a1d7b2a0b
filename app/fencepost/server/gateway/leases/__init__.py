"""Leases: acquired with their claims, renewed, released, observed."""
