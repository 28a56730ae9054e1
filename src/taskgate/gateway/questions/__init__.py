"""What servers and people are asked and answer, and the events that callers follow."""
