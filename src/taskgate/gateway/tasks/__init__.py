"""Durable tasks: any call can become one, and none is lost or run twice. The rules are in `core.tasks`, the bytes in the store."""
