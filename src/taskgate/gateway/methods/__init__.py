"""Use cases of MCP methods that the gateway answers itself, and what keeps sessions and subscriptions."""
