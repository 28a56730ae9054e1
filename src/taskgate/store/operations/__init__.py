"""What the store does, written once for every database: each operation is a plain function over a `Transaction`."""
