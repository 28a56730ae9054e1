"""What happened inside the gateway, told to whoever subscribed."""
