"""Tools that the gateway answers itself: helpers to follow tasks and questions, and the facade over all of MCP."""
