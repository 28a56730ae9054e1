"""The composition root: the only package that knows every adapter.

`build` has no side effects, so `taskgate check` goes the very path that `taskgate serve` goes.
"""
