"""Governance at work: judging calls, asking people, remembering what they said, and looking once more before a byte goes out."""
