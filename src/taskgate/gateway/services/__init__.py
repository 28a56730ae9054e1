"""What the gateway offers to each of its consumers: transports, access control, the console, configuration and lifecycle."""
