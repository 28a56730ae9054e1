"""MCP settings of other programs: find and read them, and replace their servers by the gateway.

`known` describes each client. Text edits are pure functions that leave every other byte unchanged; only `takeover` and
`change_records` write files.
"""
