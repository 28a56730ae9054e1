"""Credentials of other issuers: verifies tokens of callers, and obtains tokens for servers.

`verifier.Verifier` verifies bearer tokens and caches the results, so that a call costs one dictionary lookup.
"""
