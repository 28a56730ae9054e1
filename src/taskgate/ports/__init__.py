"""What the middle needs from the rim, as protocols and the values they exchange."""
