"""The store's ports over operations: what is shared by every adapter, which supplies only how to write, read and defer."""
