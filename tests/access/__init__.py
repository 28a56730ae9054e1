"""Authentication and authorization, at every way in."""
