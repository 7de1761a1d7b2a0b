"""Servers as processes: on free ports of loopback, and gone when the process that started them is."""
