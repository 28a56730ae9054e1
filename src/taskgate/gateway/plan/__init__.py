"""What the configuration says, as the gateway runs by it."""
