"""What tests stand on: free ports, programs in their own processes, a running gateway, and a bare JSON-RPC client.

Nothing here knows what a test wants to prove; the expectations live in the tests. Everything started here is ended
here, by process id.
"""
