"""Authentication and authorization of every request on every transport, and the declarations of all routes."""
