"""Other programs' MCP settings: where each client keeps them, how to read them, and how to put the gateway in front.

One small file for each client. Text edits are pure functions that leave every other byte alone; `takeover` is the
only module here that writes files.
"""
