"""MCP transports shared by the gateway and the client library: HTTP/1.1, server-sent events, child processes, parameter headers.

This is the lowest layer: it imports nothing of Taskgate except the clock. `sse`, `lines`, `param_headers`, `addresses`
and `failures` are pure; `http` and `stdio` perform I/O.
"""
