"""What a peer may ask or say, beyond calls."""
