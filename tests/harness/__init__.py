"""The basis of tests: free ports, programs in their own processes, a running gateway, and a bare JSON-RPC client.

Nothing here depends on what a test proves; the expectations are in the tests. Everything started here is ended
here, by process id.
"""
