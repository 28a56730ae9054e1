"""The interfaces between the use cases and the adapters: protocols, and the values they exchange."""
