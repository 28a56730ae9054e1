"""How MCP travels, for whoever speaks it: HTTP/1.1, server-sent events, child processes, and headers that repeat a message.

The lowest floor: the gateway's upstreams and the client library stand on it, and it imports nothing of ours but the clock.
`sse`, `lines`, `param_headers`, `addresses` and `failures` are pure; `http` and `stdio` do the input and output.
"""
