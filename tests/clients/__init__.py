"""Widely used clients, each in its own process, through Taskgate: promoted, held, questioned and cancelled calls.

`make clients` prints the matrix of all of them; the SDKs among them are tests. See docs/compatibility.md.
"""
