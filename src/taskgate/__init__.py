"""Taskgate: an MCP gateway that makes tool calls durable, governed, scoped and observable."""

__version__ = "0.1.0"
