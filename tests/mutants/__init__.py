"""Each mutant of `mutants.yaml` removes one guard by changing one line, and its tests must fail.

A mutant's line is found by its text, which must occur exactly once in `src/`; files may be moved. `make mutants` runs them
all, each in a copy of the tree with only its own tests, and prints a table.
"""
