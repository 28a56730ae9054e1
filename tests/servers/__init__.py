"""Servers that others published, spoken to directly and through Taskgate: both must say the same. See docs/compatibility.md."""
