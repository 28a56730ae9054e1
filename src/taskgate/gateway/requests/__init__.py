"""A caller's request: its session, admission, delivery and reply."""
