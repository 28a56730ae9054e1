"""The store in one SQLite file: durable, single-process, nothing to install."""
