"""The interaction tests of the Python SDK, from its source distribution, through Taskgate: see `run.py`."""
