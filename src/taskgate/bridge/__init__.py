"""`taskgate stdio`: a client's standard streams joined to the user's local gateway.

Standard library only, and as little of it as will do: every client starts one of these, and it must be small and quick. It passes
whole lines on and reads JSON only where a line does not look like the usual ones. What it must know is which requests are open, so
that a gateway that dies in the middle leaves no client without an answer.
"""
