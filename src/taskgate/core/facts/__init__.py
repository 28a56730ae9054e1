"""What rules can depend on besides a name: facts about an entry, its caller and a call, and conditions on them."""
