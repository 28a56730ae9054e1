"""Durable tasks: create, run, follow, recover and show them."""
