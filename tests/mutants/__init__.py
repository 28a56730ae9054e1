"""Sabotage, one line at a time: each mutant of `mutants.yaml` takes one guard away, and its tests must notice.

A mutant's line is found by its text, which must stand exactly once in `src/`; files may move as they like. `make mutants` runs them
all, each in a copy of the tree with only its own tests, and prints a table.
"""
