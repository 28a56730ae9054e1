"""The operations of the store, shared by all databases: each is a plain function over a `Transaction`."""
