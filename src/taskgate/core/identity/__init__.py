"""Who somebody is, as credentials prove it, and what a scope requires of them."""
