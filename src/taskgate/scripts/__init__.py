"""Run scripts in worker processes with limits."""
