"""How each generation of MCP spells a handshake, a request and a task."""
