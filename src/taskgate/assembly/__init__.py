"""The composition root: the only package that imports every adapter.

`build` has no side effects, so `taskgate check` uses the same code as `taskgate serve`.
"""
