"""Requests of servers to clients (elicitation, sampling, roots), the inbox where they wait, and the callers' event feeds."""
