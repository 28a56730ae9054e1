"""What the gateway says about a call whose exchange was broken, beside a ledger that the gateway cannot touch.

`matrix` holds the faults, the ways a call can be made and the judge; the tests here walk a part of it, `make faults` all of it.
"""
