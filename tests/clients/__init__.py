"""The clients that people have, each in its own process, through Taskgate: promoted, held, asked and cancelled.

`make clients` prints the matrix of all of them; the SDKs among them are tests. See docs/compatibility.md.
"""
