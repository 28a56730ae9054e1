"""Whether this version decides calls as another one does: `make decision-equality BASE=COMMIT`.

`generated_calls.py` makes configurations with every way to write down what decides about a call, and calls for each. `answers.py`
decides them with one version, in a process of its own; `adapter.py` is the only file that depends on how a version decides.
`compare.py` compares the answers of two.
"""
