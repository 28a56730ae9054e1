"""Replies of the gateway about calls whose exchange was broken, compared with a ledger that the gateway cannot write.

`matrix` holds the faults, the ways a call can be made and the checks; the tests here run a part of it, `make faults` all of it.
"""
