"""Tools that the gateway answers itself: helpers for tasks and questions, and the facade over all of MCP."""
