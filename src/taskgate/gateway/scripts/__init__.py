"""Run scripts as durable tasks: steps, the governed calls of a script, recovery, and its result."""
