"""What servers offer, and what of it each caller sees."""
