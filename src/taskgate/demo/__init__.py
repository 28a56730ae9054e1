"""A small MCP server that is bundled with Taskgate, for trying it without a configuration."""
