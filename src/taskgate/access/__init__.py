"""Authentication and authorization of every request, whichever way it arrives, and the declarations of all routes."""
