"""What is read and written: one class for each operation and query, shared by all databases (`store.operation`)."""
