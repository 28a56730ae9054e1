"""`taskgate stdio`: connects a client's standard streams to the user's local gateway.

It uses little of the standard library and nothing else, because every client starts one and it must be small and fast.
It relays whole lines and parses JSON only for unusual ones. It tracks open requests, so that every request is answered
even if the gateway dies.
"""
