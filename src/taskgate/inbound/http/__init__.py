"""Streamable HTTP, both generations on one address. Bare ASGI: a framework would cost as much as the whole relay."""
