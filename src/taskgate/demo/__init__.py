"""A small real MCP server that comes with Taskgate, so that it can be tried without any configuration."""
