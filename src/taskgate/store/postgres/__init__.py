"""The PostgreSQL store, which several gateways can share."""
