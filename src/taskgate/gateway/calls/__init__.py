"""What callers do with servers' tools, prompts and resources."""
