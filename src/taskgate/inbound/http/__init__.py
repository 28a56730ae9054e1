"""Streamable HTTP for both protocol generations on one address, without a web framework."""
