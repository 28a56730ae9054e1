"""Whether this version reads configuration files as another one does: `make config-equality BASE=COMMIT`.

`generated_files.py` makes files from the JSON schema of the other version: each key with each kind of value, misspelt keys, and
mixtures. `answers.py` reads them with one version, in a process of its own, and prints what it makes of each. `compare.py`
compares the answers of two.
"""
