"""Relay requests to servers and their replies to callers, across both protocol generations."""
