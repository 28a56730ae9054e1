"""One request of a caller, its session, and what bounds how many there are."""
