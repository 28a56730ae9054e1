"""MCP Apps and skills through the gateway."""
