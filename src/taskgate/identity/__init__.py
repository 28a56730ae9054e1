"""Verifies credentials that somebody else issued: signed tokens by the issuer's keys, opaque ones by asking the issuer.

`verifier.Verifier` is what the entrance uses. It remembers what it verified, so that a call pays for one dictionary look-up.
"""
