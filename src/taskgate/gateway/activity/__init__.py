"""What happens while nobody looks: events for callers, questions that wait for an answer, and waiting for either."""
